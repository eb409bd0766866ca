# SPDX-License-Identifier: MIT
"""What each rank should observe, computed in one process."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ranks.oracle import numbers, upstream, values
from .cases import ONE_NEEDS_GRADIENT, Case
from .observed import as_text

GRADIENT, SECOND, INPUT, UPSTREAM = "gradient", "second derivative", "input", "upstream gradient"
KEPT, OVERWRITTEN = "left alone", "overwritten"  # of the last two


def truth(case: Case, rank: int, alone: str) -> dict[str, str] | None:
    """The right answer, part by part as a rank observes it; None where there is none, or it is an exception.

    alone: what the adapter's contract has for a gather without other ranks: "input", "gathers" or "raises".
    """
    returns_input = case.depends_on_adapter and alone == "input"
    raises = case.may_raise_only or (case.depends_on_adapter and alone == "raises")
    if raises or case.late or not (case.world or returns_input):
        return None
    everyone = [values(r, case.shape(size), case.dtype) for r, size in enumerate(case.sizes)]
    sizes = torch.tensor(case.sizes, dtype=torch.long)
    right: dict[str, object]
    if case.gathers:
        right = {"output": torch.cat(everyone, case.dim), "sizes": None if returns_input else sizes, INPUT: KEPT}
        if case.upstream != "none" and (case.variant != ONE_NEEDS_GRADIENT or rank == 0):
            right |= _gradients(case, rank)
    elif case.function == "all_gather_same_dim" and case.sizes:
        right = {"result": everyone, INPUT: KEPT}
    elif case.function == "gather_sizes" and not case.variant:
        right = {"result": sizes, INPUT: KEPT}
    elif case.function == "split_by_rank" and case.variant == "tuple":
        right = {"output": everyone[rank], "sizes": sizes}
    else:
        return None
    return {part: as_text(value) for part, value in right.items()}


def _gradients(case: Case, rank: int) -> dict[str, object]:
    """Own rows of this rank's upstream gradient, or of the sum over ranks; of `2 w y` for a loss `w y²`."""
    shape = case.shape(sum(case.sizes))
    arriving = [arriving_at(case, r, shape) for r in (range(len(case.sizes)) if case.summed else [rank])]
    own = torch.stack(arriving).sum(0).narrow(case.dim, sum(case.sizes[:rank]), case.sizes[rank])
    if case.upstream == "second":
        x, along = values(rank, own.shape, case.dtype), direction(rank, own.shape, case.dtype)
        return {GRADIENT: 2 * own * x, SECOND: 2 * own * along}
    return {GRADIENT: own} if case.upstream == "total" else {GRADIENT: own, UPSTREAM: KEPT}


def arriving_at(case: Case, rank: int, shape: Sequence[int]) -> Tensor:
    """What arrives at a rank's gathered tensor, or the weight of its loss."""
    constants = {"total": 1, "expanded": rank + 2}
    if case.upstream in constants:
        return torch.full(tuple(shape), constants[case.upstream], dtype=getattr(torch, case.dtype))
    return upstream(rank, shape, case.dtype)


def direction(rank: int, shape: Sequence[int], dtype: str) -> Tensor:
    """Along which a rank's gradient is differentiated once more: whole numbers from 1 to 5."""
    return numbers(rank, 2, 5, shape, dtype, shift=-1)
