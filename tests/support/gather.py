# SPDX-License-Identifier: MIT
"""Every way to gather that the project offers, under one call, and runs of cases through them."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from tests.support.oracle import Case, Result, upstream, values
from tests.support.world import device

Gather = Callable[[Tensor, int, Any], tuple[Tensor, Any]]

DIFFERENTIABLE = ("float32", "bfloat16", "float64", "complex64", "float8_e4m3fn")


def gather_by(subject: str) -> Gather:
    """`(x, dim, sizes) -> (gathered, sizes)` of a subject, such as "core sum" or "musiclm local"."""
    who, _, grad = subject.partition(" ")
    module = importlib.import_module("shared_distributed" if who == "core" else f"{who.replace('-', '_')}_distributed")
    if who == "core":
        return lambda x, dim, sizes: module.all_gather(x, dim, sizes=sizes, grad=grad)
    summed = {"all_reduce_grads": True} if grad == "sum" else {}  # left out, it is as in the original
    if issubclass(module.AllGather, nn.Module):
        return lambda x, dim, sizes: module.AllGather(dim=dim, **summed)(x, sizes)
    return lambda x, dim, sizes: module.all_gather(x, dim, sizes, *summed.values())


def run_cases(subject: str, cases: list[Case]) -> list[Result]:
    """Each case forward and, where the dtype has a gradient, backward."""
    gather = gather_by(subject)
    return [run_case(gather, case) for case in cases]


def run_case(gather: Gather, case: Case) -> Result:
    rank = dist.get_rank()
    x = make_input(case, rank)
    before = x.clone()
    if case.dtype in DIFFERENTIABLE:
        x.requires_grad_()
    gathered, sizes = gather(x, case.dim, make_sizes(case))
    gradient = None
    if x.requires_grad:
        arriving = upstream(rank, gathered.shape, case.dtype).to(device())
        arriving = arriving if case.contiguous else scatter_in_memory(arriving)
        kept = arriving.clone()
        (gradient,) = torch.autograd.grad(gathered, x, arriving)
        assert arriving.tolist() == kept.tolist(), "the incoming gradient was written to"
    assert x.tolist() == before.tolist(), "the input was written to"
    return Result(gathered, gathered.is_contiguous(), sizes, gradient)


def make_input(case: Case, rank: int) -> Tensor:
    x = values(rank, case.shape(case.sizes[rank]), case.dtype).to(device())
    return x if case.contiguous else scatter_in_memory(x)


def make_sizes(case: Case) -> Any:
    if case.given == "no":
        return None
    return torch.tensor(case.sizes, device=device()) if case.given == "tensor" else list(case.sizes)


def scatter_in_memory(x: Tensor) -> Tensor:
    """The same values with every other element of a larger, transposed buffer as its storage."""
    buffer = x.new_zeros(*x.shape[::-1], 2)
    view = buffer[..., 0].permute(tuple(range(x.ndim - 1, -1, -1)))
    view.copy_(x)
    return view


def pad_to_longest(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """The gather that the originals do: pad to the longest rank, gather, drop the padding."""
    missing = max(sizes) - x.shape[dim]
    if missing:  # the longest rank's tensor goes as it is
        x = functional.pad(x, (0, 0) * (x.ndim - 1 - dim) + (0, missing))
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in sizes]
    dist.all_gather(parts, x)
    return torch.cat([part.narrow(dim, 0, n) for part, n in zip(parts, sizes, strict=True)], dim)
