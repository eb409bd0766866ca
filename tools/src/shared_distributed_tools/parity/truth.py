# SPDX-License-Identifier: MIT
"""What each rank should observe, computed in one process, as text that can be sent, compared and shown."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..ranks.oracle import numbers, upstream, values
from .cases import Case

GRADIENT, SECOND, INPUT, UPSTREAM = "gradient", "second derivative", "input", "upstream gradient"
KEPT, OVERWRITTEN = "left alone", "overwritten"  # of the last two
GUARD = -77.0  # lies behind the one number of an expanded gradient, and must lie there afterwards


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
        if needs_gradient(case, rank):
            x = everyone[rank].requires_grad_()
            ranks = range(len(case.sizes)) if case.summed else [rank]
            right |= dict(gradients(case, rank, x, torch.cat(everyone, case.dim), ranks))
    elif case.function == "all_gather_same_dim":
        right = {"result": everyone, INPUT: KEPT}
    elif case.function == "gather_sizes":
        right = {"result": sizes, INPUT: KEPT}
    elif case.call == "split_by_rank(tuple(parts))":
        right = {"output": everyone[rank], "sizes": sizes}
    else:
        return None
    return {part: as_text(value) for part, value in right.items()}


def gradients(case: Case, rank: int, x: Tensor, y: Tensor, ranks: Sequence[int]) -> Iterator[tuple[str, object]]:
    """What a rank's input gets, where the losses of `ranks` arrive at the gathered tensor: `(… n_r …)`."""
    arriving = torch.stack([arriving_at(case, r, y.shape) for r in ranks]).sum(0)
    if case.upstream == "second":
        (first,) = torch.autograd.grad((arriving * y * y).sum(), x, create_graph=True)
        yield GRADIENT, first
        along = numbers(rank, 2, 5, x.shape, case.dtype, shift=-1)  # whole numbers from 1 to 5
        yield SECOND, torch.autograd.grad((first * along).sum(), x)[0]
        return
    if case.upstream == "total":
        (len(ranks) * y.sum()).backward()
    else:
        memory = arriving = transposed(arriving) if case.upstream == "transposed" else arriving
        if case.upstream == "expanded":
            memory = torch.full((max(y.numel(), 1),), GUARD, dtype=y.dtype)
            memory[:1] = arriving.flatten()[:1]
            arriving = memory[:1].view((1,) * y.ndim).expand(y.shape)
        before = memory.clone()
        y.backward(arriving)
        yield UPSTREAM, kept(memory, before)
    yield GRADIENT, x.grad


def kept(memory: Tensor, before: Tensor) -> str:
    """Whether somebody's memory is as it was."""
    return KEPT if torch.equal(memory, before) else OVERWRITTEN


def transposed(x: Tensor) -> Tensor:
    """The same values in the opposite order in memory."""
    backwards = tuple(reversed(range(x.ndim)))
    return x.permute(backwards).contiguous().permute(backwards)


def arriving_at(case: Case, rank: int, shape: Sequence[int]) -> Tensor:
    """What arrives at a rank's gathered tensor, or the weight of its loss."""
    if case.upstream == "expanded":
        return torch.full(tuple(shape), rank + 2, dtype=getattr(torch, case.dtype))
    return upstream(rank, shape, case.dtype)
