# SPDX-License-Identifier: MIT
"""Cases of `all_to_all` and `all_gather_each`, and what every rank should see, computed in one process."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.support.oracle import DIMS, DTYPES, upstream, values

Counts = tuple[tuple[int, ...], ...]  # [s][r]: how many rows go from rank s to rank r

KINDS = ("even", "ragged", "one sends nothing", "one receives nothing", "skewed", "all empty")
RECEIVED = ("no", "list", "tensor")  # whether `received` is passed in


class Swap(NamedTuple):
    """One call of `all_to_all`, the same on every rank but for the counts."""

    counts: Counts
    dim: int = 0
    dtype: str = "float32"
    received: str = "no"
    contiguous: bool = True
    other: tuple[int, ...] = (2, 3, 4)

    def shape(self, size: int) -> tuple[int, ...]:
        """The shape with `size` at the dim of the rows."""
        shape = list(self.other)
        shape[self.dim] = size
        return tuple(shape)

    def sent(self, rank: int) -> tuple[int, ...]:
        """How many rows a rank sends to each rank."""
        return self.counts[rank]

    def received_by(self, rank: int) -> tuple[int, ...]:
        """How many rows a rank receives from each rank."""
        return tuple(sent[rank] for sent in self.counts)


def counts_of(kind: str, world: int) -> Counts:
    """The counts of a world: where they are ragged, no rank's are those of another."""
    ranks = range(world)
    if kind == "even":
        return ((2,) * world,) * world
    if kind == "skewed":
        return tuple(tuple(7 if r == 0 else s % 2 for r in ranks) for s in ranks)
    if kind == "all empty":
        return ((0,) * world,) * world
    counts = [[(3 * s + 2 * r + 1) % 4 for r in ranks] for s in ranks]
    middle = world // 2
    if kind == "one sends nothing":
        counts[middle] = [0] * world
    if kind == "one receives nothing":
        for row in counts:
            row[middle] = 0
    return tuple(map(tuple, counts))


def swaps_of(world: int, covering: Callable[..., Any], seed: str) -> list[Swap]:
    """Cases in which any two options meet: kind of counts, dim, dtype, `received` given or not, contiguous."""
    axes = (KINDS, DIMS, DTYPES, RECEIVED, (True, False))
    return [
        Swap(counts_of(kind, world), dim, dtype, received, contiguous)
        for kind, dim, dtype, received, contiguous in covering(axes, 2, seed)
    ]


def swapped(case: Swap, rank: int) -> Tensor:
    """What a rank should receive."""
    pieces = []
    for source, sent in enumerate(case.counts):
        rows = values(source, case.shape(sum(sent)), case.dtype)
        pieces.append(rows.split(sent, case.dim)[rank])
    return torch.cat(pieces, case.dim)


def gradient_of_swap(case: Swap, rank: int) -> Tensor:
    """What a rank's input should get, where every rank's output gets its own upstream gradient."""
    pieces = []
    for other in range(len(case.counts)):
        received = case.received_by(other)
        arriving = upstream(other, case.shape(sum(received)), case.dtype)
        pieces.append(arriving.split(received, case.dim)[rank])
    return torch.cat(pieces, case.dim)


def shapes_of(kind: str, world: int) -> list[tuple[int, ...]]:
    """Every rank's shape in an `all_gather_each`."""
    if kind == "0-d":
        return [()] * world
    if kind == "equal":
        return [(2, 3)] * world
    if kind == "1-d":
        return [(rank + 1,) for rank in range(world)]
    if kind == "one empty":
        return [(rank, 3, 2) for rank in range(world)]
    return [(1 + rank, 3 - rank % 3, 2 + 2 * rank) for rank in range(world)]


# ------------------------------------------------------------------ derivatives of every order

Move = Callable[[list[Tensor]], list[Any]]  # every rank's input to every rank's output, in one process


def weight(rank: int, shape: Sequence[int]) -> Tensor:
    """A factor that depends on rank and position."""
    numbers = torch.arange(1.0, torch.Size(shape).numel() + 1, dtype=torch.float64)
    return (numbers * (rank + 1) / 7).cos().view(list(shape))


def start(rank: int, shape: Sequence[int]) -> Tensor:
    """An input that derivatives can be taken of."""
    return (values(rank, tuple(shape), "float64") / 50).requires_grad_()


def loss_of(rank: int, outputs: Sequence[Tensor]) -> Tensor:
    """A loss whose derivatives of every order depend on its input."""
    total = torch.zeros((), dtype=torch.float64)
    for number, output in enumerate(outputs):
        total = total + (output.sin() * weight(rank + number, output.shape)).sum()
    return total


def derivatives(xs: list[Tensor], ranks: Sequence[int], losses: list[Tensor], order: int) -> list[list[Tensor]]:
    """`[order][x]`: each order is the gradient of the one before, weighted by rank and position."""
    found = []
    total = torch.stack(losses).sum()
    for number in range(order):
        last = number == order - 1
        gradients = list(torch.autograd.grad(total, xs, create_graph=not last))
        found.append([gradient.detach() for gradient in gradients])
        terms = [(g.cos() * weight(rank, g.shape)).sum() for g, rank in zip(gradients, ranks, strict=True)]
        total = torch.stack(terms).sum()
    return found


def derivatives_alone(shapes: Sequence[Sequence[int]], move: Move, order: int) -> list[list[Tensor]]:
    """Of every rank's input, `[rank][order]`, in one process."""
    ranks = range(len(shapes))
    xs = [start(rank, shape) for rank, shape in zip(ranks, shapes, strict=True)]
    losses = [loss_of(rank, outputs) for rank, outputs in zip(ranks, move(xs), strict=True)]
    by_order = derivatives(xs, ranks, losses, order)
    return [[gradients[rank] for gradients in by_order] for rank in ranks]


def swap_alone(counts: Counts, dim: int) -> Move:
    """`all_to_all` of every rank, in one process."""

    def move(xs: list[Tensor]) -> list[Any]:
        split = [x.split(sent, dim) for x, sent in zip(xs, counts, strict=True)]
        return [[torch.cat([pieces[rank] for pieces in split], dim)] for rank in range(len(counts))]

    return move
