# SPDX-License-Identifier: MIT
"""What each rank should observe, computed in one process, as text that can be sent, compared and shown."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ranks.oracle import numbers, upstream, values
from .cases import Case

GRADIENT, SECOND, INPUT, UPSTREAM = "gradient", "second derivative", "input", "upstream gradient"
KEPT, OVERWRITTEN = "left alone", "overwritten"  # of the last two


def as_text(value: object) -> str:
    """A value in full: two texts are equal if the values are, to the last bit. A list is no tuple."""
    if isinstance(value, Tensor):
        numbers = " ".join(map(str, value.detach().flatten().tolist()))
        return f"{str(value.dtype).removeprefix('torch.')} tensor {tuple(value.shape)}: {numbers}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {', '.join(map(as_text, value)) or 'nothing'}"
    if value is None or isinstance(value, str):
        return str(value)
    return f"{type(value).__name__} {value if isinstance(value, bool | int | float) else '…'}"


def inputs(case: Case) -> list[Tensor]:
    """Every rank's input: `(… n_r …)`, or 0-d where the case has no sizes."""
    shapes = [case.shape(size) for size in case.sizes] or [()] * max(case.world, 1)
    return [values(rank, shape, case.dtype) for rank, shape in enumerate(shapes)]


def needs_gradient(case: Case, rank: int) -> bool:
    """Whether a rank's input requires grad."""
    return case.upstream != "none" and (case.upstream != "rank 0" or rank == 0)


def truth(case: Case, rank: int, alone: str) -> dict[str, str] | None:
    """The right answer, part by part as a rank observes it; None where there is none, or it is an exception.

    alone: what the adapter's contract has for a gather without other ranks: "input", "gathers" or "raises".
    """
    returns_input = case.depends_on_adapter and alone == "input"
    raises = case.raises or (case.depends_on_adapter and alone == "raises")
    if raises or case.late or not case.sizes or not (case.world or returns_input):
        return None
    everyone, sizes = inputs(case), torch.tensor(case.sizes, dtype=torch.long)
    right: dict[str, object]
    if case.gathers:
        right = {"output": torch.cat(everyone, case.dim), "sizes": None if returns_input else sizes, INPUT: KEPT}
        right |= _gradients(case, rank) if needs_gradient(case, rank) else {}
    elif case.function == "all_gather_same_dim":
        right = {"result": everyone, INPUT: KEPT}
    elif case.function == "gather_sizes":
        right = {"result": sizes, INPUT: KEPT}
    elif case.call == "split_by_rank(tuple(parts))":
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
