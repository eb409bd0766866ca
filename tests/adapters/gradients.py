# SPDX-License-Identifier: MIT
"""Derivatives, first and second, on real ranks."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from tests.support.adapters import core
from tests.support.gather import gather_by
from tests.support.oracle import upstream, values
from tests.support.world import device


class _Replicate(Function):
    """Identity whose backward sums over ranks: one input that all ranks hold in common."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Tensor:  # type: ignore[override]
        return _Total.apply(grads)  # type: ignore[no-any-return]


class _Total(Function):
    """Sum over ranks whose backward is the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Tensor:  # type: ignore[override]
        return _Replicate.apply(grads)  # type: ignore[no-any-return]


def global_function(subject: str, sizes: tuple[int, ...], dim: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """One function of one replicated input, in which every rank gathers its part.

    Its derivative is well-defined on every rank, so gradcheck can perturb it on all of them alike.
    """
    rank = dist.get_rank()
    gather = gather_by(subject) if subject != "reduce_scatter" else None
    start = sum(sizes[:rank])

    def function(whole: Tensor) -> Tensor:
        mine = _Replicate.apply(whole)
        weight = upstream(rank, whole.shape, "float64").to(device()) + 0.5
        if gather is None:
            part = core().reduce_scatter((mine * weight) ** 2, dim, sizes=sizes)
            padded = torch.zeros_like(whole).narrow(dim, start, sizes[rank])
            spread = torch.cat(
                [
                    torch.zeros_like(whole.narrow(dim, 0, start)),
                    part + padded,
                    torch.zeros_like(whole.narrow(dim, 0, sum(sizes) - start - sizes[rank])),
                ],
                dim,
            )
            return _Total.apply(spread * weight)  # type: ignore[no-any-return]
        gathered, _ = gather(mine.narrow(dim, start, sizes[rank]), dim, None)
        return _Total.apply(weight * gathered**3)  # type: ignore[no-any-return]

    shape = [2, 2]
    shape[dim] = sum(sizes)
    torch.manual_seed(0)
    return function, torch.randn(shape, dtype=torch.float64, device=device(), requires_grad=True)


def check_global_function(subject: str, sizes: tuple[int, ...], dim: int) -> tuple[bool, bool]:
    function, whole = global_function(subject, sizes, dim)
    return torch.autograd.gradcheck(function, whole), torch.autograd.gradgradcheck(function, whole)


def loss_of(rank: int, gathered: Tensor) -> Tensor:
    """A rank's loss: every element meets every other, so that cross terms show in both derivatives."""
    weight = (upstream(rank, gathered.shape, "float64") / 8).to(gathered.device)
    return (weight * gathered).sum() ** 3 / 10 + (weight * gathered**2).sum()


def part_of(rank: int, sizes: tuple[int, ...]) -> Tensor:
    return values(rank, (sizes[rank], 2), "float64") / 50 + 0.1


def derivatives(subject: str, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """This rank's first derivative, and the derivative of a weighted sum of it."""
    rank = dist.get_rank()
    x = part_of(rank, sizes).to(device()).requires_grad_()
    gathered, _ = gather_by(subject)(x, 0, None)
    (first,) = torch.autograd.grad(loss_of(rank, gathered), x, create_graph=True)
    weight = values(rank + 1, first.shape, "float64").to(device()) / 50
    (second,) = torch.autograd.grad((weight * first).sum(), x)
    return first, second


def expanded_gradient(subject: str, sizes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """`y.sum().backward()`: the gradient that arrives is one number in memory, expanded."""
    rank = dist.get_rank()
    x = values(rank, (sizes[rank], 3), "float32").to(device()).requires_grad_()
    gathered, _ = gather_by(subject)(x, 0, None)
    gathered.sum().backward()
    assert x.grad is not None
    return x.grad.tolist(), gathered.tolist()


def bytes_kept_alive(subject: str) -> int:
    """The memory that belongs to the gradient of one row of four bytes."""
    x = torch.ones(1, 1, device=device(), requires_grad=True)
    gather_by(subject)(x, 0, None)[0].square().sum().backward()
    assert x.grad is not None
    return x.grad.untyped_storage().nbytes()


def unused_parts(subject: str) -> list[float]:
    """A loss that looks at one element only: the rest arrive as zeros, and every rank takes part."""
    rank = dist.get_rank()
    x = torch.ones(2, device=device(), requires_grad=True)
    gathered, _ = gather_by(subject)(x, 0, None)
    gathered[rank].backward()
    assert x.grad is not None
    return list(x.grad.tolist())


def some_want_the_gradient(subject: str, wants: list[bool]) -> tuple[bool, list[float] | None]:
    """A summed backward that only some inputs need: every rank must enter it."""
    rank = dist.get_rank()
    x = torch.full((rank + 1,), float(rank), device=device(), requires_grad=wants[rank])
    gathered, _ = gather_by(subject)(x, 0, None)
    (gathered * (rank + 1) * torch.arange(1.0, len(gathered) + 1, device=device())).sum().backward()
    return gathered.requires_grad, None if x.grad is None else x.grad.tolist()
