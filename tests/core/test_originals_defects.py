# SPDX-License-Identifier: MIT
"""What the original files get wrong, one by one. Each of these tests fails with the defect put in.

| defect                                          | tested in                                              |
|-------------------------------------------------|--------------------------------------------------------|
| names that are never defined                    | here                                                   |
| the incoming gradient is written to             | test_matrix (asserted on the ranks), test_gradients    |
| non-contiguous tensors reach a collective       | here, test_matrix                                      |
| the second derivative of a summed gradient      | test_gradients                                         |
| ranks that disagree abort or hang               | test_bad_input                                         |
| padding travels, and is selected away           | test_transports: only real rows travel                 |
| device-to-host syncs                            | here                                                   |
| int16, fp8, unsigned 16-bit                     | test_dtypes: every dense dtype                         |
| no group argument; nothing compiles             | test_groups, test_compile                              |
"""

import builtins
import dis
import importlib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.fake import syncs_on_cuda
from tests.support import World, Worlds
from tests.support.adapters import ADAPTERS, SUBJECTS, marked
from tests.support.old_torch import needs_fake_group
from tests.support.oracle import Case
from tests.support.watch import counted

CORE = Path(__file__).resolve().parents[2] / "shared/distributed/src/shared_distributed"


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


@pytest.mark.parametrize(
    "module",
    [f"shared_distributed.{path.stem}" for path in sorted(CORE.glob("_[a-z]*.py"))]
    + [pytest.param(f"{a.replace('-', '_')}_distributed", marks=pytest.mark.suite(a)) for a in ADAPTERS],
)
def test_every_name_resolves(module: str) -> None:
    """No function reads a global that nobody defines (three of the originals do, at their first gather)."""
    loaded = importlib.import_module(module)
    assert loaded.__file__ is not None
    source = compile(Path(loaded.__file__).read_text(), loaded.__file__, "exec")
    names = {
        instruction.argval
        for code in code_objects(source)
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    unknown = {name for name in names if not hasattr(loaded, name) and not hasattr(builtins, name)}
    assert not unknown - {"__name__", "__module__", "__qualname__"}, unknown


@pytest.mark.parametrize("subject", marked(SUBJECTS))
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.only_over("gloo", reason="nccl-rules looks at every tensor by itself, NCCL at most of them")
def test_what_reaches_a_collective_is_contiguous(subject: str, dim: int, worlds: Worlds) -> None:
    """A transposed input and gradient, small and large: the watched process group sees contiguous tensors only."""
    for rows, collectives in ((5, 1), (60000 if dim == 0 else 600000, 5)):
        case = Case((rows, 2, 0, 3), dim, "float32", contiguous=False, other=(2, 9))
        for forward, _ in worlds.get("gloo", 4).run(counted, subject, case):
            assert len(forward) == collectives


@needs_fake_group
@pytest.mark.parametrize(
    ("world", "rank", "subjects"),
    [(4, 1, (*SUBJECTS, "helpers")), (1024, 700, ("core sum", "musiclm sum"))],
    ids=["4 ranks", "1024 ranks"],
)
def test_device_to_host_syncs_on_cuda(world: int, rank: int, subjects: tuple[str, ...]) -> None:
    """Simulated (fake tensors, no GPU): none when sizes are known on the host, one when not, none backward.

    A LongTensor of sizes on the device is not known on the host: passing one back costs one read.
    """
    with World(1, join=False) as fresh:
        (seen,) = fresh.run(syncs_on_cuda, world, rank, subjects)
    sizes = [r % 3 + 1 for r in range(world)]
    gathered, own = (sum(sizes), 5), (sizes[rank], 5)
    for subject in [subject for subject in subjects if subject != "helpers"]:
        expected = {
            "known": (gathered, "cuda", 0, ""),
            "backward": (own, "cuda", 0, ""),
            "not known": (gathered, "cuda", 1, ""),
            "passed back": (gathered, "cuda", 0 if subject.startswith("core") else 1, ""),
        }
        if not subject.startswith("core"):  # which returns plain ints
            expected["sizes"] = ((world,), "cuda", 0, "")
        assert seen[subject] == expected, subject
    if "helpers" in subjects:
        assert (
            seen["helpers"]
            == {
                "reduce_scatter": (own, "cuda", 1, ""),  # the ranks agree on the gradient
                "reduce_scatter, not checked": (own, "cuda", 0, ""),
                "two tensors, sizes not known": (gathered, "cuda", 1, ""),
                "all_gather_variable_dim, passed back": (gathered, "cuda", 1, ""),
                "split_by_rank, passed on": (gathered, "cuda", 1, ""),
                "gather_sizes": ((world,), "cuda", 1, ""),
                "own rows": (own, "cuda", 0, ""),
                "ranks of rows": (gathered[:1], "cuda", 0, ""),
                "mask": ((world, 3), "cuda", 0, ""),
            }
        )
