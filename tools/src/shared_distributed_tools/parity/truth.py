# SPDX-License-Identifier: MIT
"""What each rank should observe, computed in one process."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..ranks.oracle import numbers, upstream, values
from .cases import ONE_NEEDS_GRADIENT, Case
from .observed import as_data

GRADIENT, SECOND, INPUT, UPSTREAM = "gradient", "second derivative", "input", "upstream gradient"
KEPT, OVERWRITTEN = "left alone", "overwritten"  # of the last two


def direction(rank: int, shape: Sequence[int], dtype: str) -> Tensor:
    """Along which a rank's gradient is differentiated once more: whole numbers from 1 to 5."""
    return numbers(rank, 2, 5, shape, dtype, shift=-1)


def truth(case: Case, rank: int, alone: str) -> dict[str, Any] | None:
    """The right answer, part by part as a rank observes it; None where there is none, or it is an exception.

    alone: what the adapter's contract has for a gather without other ranks: "input", "gathers" or "raises".
    """
    returns_input = case.depends_on_adapter and alone == "input"
    if case.late or case.may_raise_only or not (case.world or returns_input):
        return None
    if case.depends_on_adapter and alone == "raises":
        return None
    kept = {INPUT: as_data(KEPT)}
    if case.function == "all_gather_same_dim" and case.sizes:
        everyone = [as_data(values(r, case.shape(size), case.dtype)) for r, size in enumerate(case.sizes)]
        return {"result": ("list", tuple(everyone)), **kept}
    if case.function == "gather_sizes" and not case.variant:
        return {"result": _sizes(case), **kept}
    if case.function == "split_by_rank" and case.variant == "tuple":
        return {"output": as_data(values(rank, case.shape(case.sizes[rank]), case.dtype)), "sizes": _sizes(case)}
    if case.kind == "callable" and case.function not in ("all_gather", "all_gather_variable_dim"):
        return None
    parts = [values(r, case.shape(size), case.dtype) for r, size in enumerate(case.sizes)]
    sizes = as_data(None) if returns_input else _sizes(case)
    right = {"output": as_data(torch.cat(parts, case.dim)), "sizes": sizes, **kept}
    if case.upstream != "none" and (case.variant != ONE_NEEDS_GRADIENT or rank == 0):
        right |= _gradients(case, rank)
    return right


def _gradients(case: Case, rank: int) -> dict[str, Any]:
    """Own rows of this rank's upstream gradient, or of the sum over ranks; of `2 w y` for a loss `w y²`."""
    shape = case.shape(sum(case.sizes))
    arriving = [arriving_at(case, r, shape) for r in (range(len(case.sizes)) if case.summed else [rank])]
    own = torch.stack(arriving).sum(0).narrow(case.dim, sum(case.sizes[:rank]), case.sizes[rank])
    if case.upstream == "total":
        return {GRADIENT: as_data(own)}
    if case.upstream != "second":
        return {GRADIENT: as_data(own), UPSTREAM: as_data(KEPT)}
    x = values(rank, own.shape, case.dtype)
    return {GRADIENT: as_data(2 * own * x), SECOND: as_data(2 * own * direction(rank, own.shape, case.dtype))}


def arriving_at(case: Case, rank: int, shape: Sequence[int]) -> Tensor:
    """What arrives at a rank's gathered tensor, or the weight of its loss."""
    if case.upstream == "total":
        return torch.ones(tuple(shape), dtype=getattr(torch, case.dtype))
    if case.upstream == "expanded":
        return torch.full(tuple(shape), rank + 2, dtype=getattr(torch, case.dtype))
    return upstream(rank, shape, case.dtype)


def _sizes(case: Case) -> Any:
    return as_data(torch.tensor(case.sizes, dtype=torch.long))
