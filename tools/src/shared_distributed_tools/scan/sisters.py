# SPDX-License-Identifier: MIT
"""Projects whose gathers are known and that no adapter covers: what each has, what its maintainer can do today."""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .compare import paired, similarity
from .fingerprint import Definition, Known

SISTERS = Path(__file__).with_name("sisters.json")

_WITHOUT_GRADIENT = (
    "This is the distributed.py of {0}: st-moe's gathers without their autograd Function, and helpers of its own. No "
    "adapter replaces the whole file. Today: delete {1} from it, and put `from shared_distributed import {1}` in "
    "their place: these names take the same arguments and mean the same. {2} A gradient comes with the core's "
    "`all_gather` only."
)
_SAME = "all_gather_same_dim, all_gather_variable_dim, gather_sizes, has_only_one_value, is_distributed"
ADVICE = {
    "CoCa-pytorch": (
        "This is the gather of CoCa-pytorch. Its AllGather takes one tensor, gathers along dim 0, returns the tensor "
        "alone, and asserts that there is more than one rank. No adapter replaces it. Today: "
        '`from shared_distributed import all_gather`, and `all_gather(x, grad="local")[0]` in the place of '
        '`all_gather(x)`; grad="sum" gives the gradient of all ranks\' losses. In the place of '
        "`all_gather_variable_batch(t)`, whose sizes are a list: `all_gather_variable_dim(t)`, whose sizes are a "
        "LongTensor. `pad_dim_to` means the same in both. Without other ranks the core returns its input."
    ),
    "evolutionary-policy-optimization": _WITHOUT_GRADIENT.format(
        "evolutionary-policy-optimization",
        f"{_SAME}, pad_dim_to",
        "Its own `all_gather(t, dim)` stays, which returns the tensor alone.",
    ),
    "x-transformers-rl": _WITHOUT_GRADIENT.format(
        "x-transformers-rl",
        _SAME,
        "Its own `pad_dim_to` stays, which takes a `value`.",
    ),
}


class Sister(NamedTuple):
    """A known project, the definitions of a file that stand for its own, and the share of common statements."""

    name: str
    pairs: dict[str, Definition]
    similarity: float


def nearest_sister(found: list[Definition]) -> Sister | None:
    """The known project that a file's definitions are nearest to, or None."""
    sisters = []
    for name, known in known_sisters().items():
        pairs = paired(found, known)
        if pairs:
            sisters.append(Sister(name, pairs, similarity(pairs, known)))
    return max(sisters, key=lambda one: one.similarity, default=None)


@cache
def known_sisters() -> dict[str, dict[str, Known]]:
    """The definitions of each project, as `fingerprint` records them."""
    known = json.loads(SISTERS.read_text(encoding="utf-8")).items()
    return {project: {name: Known(*facts) for name, facts in found.items()} for project, found in known}
