# SPDX-License-Identifier: MIT
"""Gathers that are started on one stream and waited for on another: memory is not reused too early."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.emulated.calls import settings
from tests.support import World
from tests.support.oracle import values
from tests.support.world import device, join_group

TURNS = 15
WORLD = 2

# ------------------------------------------------------------------ on ranks


def shape_of(rank: int, dim: int, turn: int) -> tuple[int, ...]:
    """100 rows more on each rank, along `dim`, and another size in each turn."""
    shape = [200, 200]
    shape[dim] = 100 * (rank + 1) + turn
    return tuple(shape)


def all_rows(dim: int, turn: int) -> Tensor:
    return torch.cat([values(rank, shape_of(rank, dim, turn), "float32") for rank in range(WORLD)], dim)


def overwrite(elements: int) -> None:
    """Write to whatever memory the allocator would give to the next tensors of the current stream."""
    for _ in range(4):
        torch.full((elements,), -7.0, device=device())


def wrong_on_another_stream(how: str, dim: int) -> int:
    """How many gathers, started on one stream and used on another, had wrong rows."""
    settings(kernel_delay=300, nccl_delay=3000)
    join_group()
    rank, wrong = dist.get_rank(), 0
    starting, using = torch.cuda.Stream(), torch.cuda.Stream()
    for turn in range(TURNS):
        expected = all_rows(dim, turn)
        sizes = None if how == "no sizes" else [100 * (r + 1) + turn for r in range(WORLD)]
        with torch.cuda.stream(starting):
            x: Any = values(rank, shape_of(rank, dim, turn), "float32").to(device())
            gathering = core.all_gather_async([x, x + 1] if how == "list" else x, dim, sizes=sizes)
        with torch.cuda.stream(using):
            gathered, _ = gathering.wait()
            del gathering
        found = gathered if how == "list" else [gathered]
        for tensor in found:
            tensor.record_stream(using)  # the caller's duty: the result is used on another stream than it was made on
        with torch.cuda.stream(starting):
            del x
            overwrite(expected.numel())
        with torch.cuda.stream(using):
            right = [torch.equal(tensor.cpu(), expected + i) for i, tensor in enumerate(found)]
        wrong += right.count(False)
        del gathered, found, tensor
    return wrong


def gradients_on_a_side_stream(dim: int) -> bool:
    """Forward and backward on a side stream, while the default stream overwrites what is free."""
    settings(kernel_delay=300, nccl_delay=3000)
    join_group()
    rank, side = dist.get_rank(), torch.cuda.Stream()
    right = True
    for turn in range(TURNS):
        rows = values(rank, shape_of(rank, dim, turn), "float32")
        upstream = [values(r + 7, all_rows(dim, turn).shape, "float32") for r in range(WORLD)]
        expected = sum(upstream).split([100 * (r + 1) + turn for r in range(WORLD)], dim)[rank]
        with torch.cuda.stream(side):
            x = rows.to(device()).requires_grad_()
            gathered, _ = core.all_gather(x, dim)
            gathered.backward(upstream[rank].to(device()))
            del gathered
        overwrite(expected.numel())
        with torch.cuda.stream(side):
            assert x.grad is not None
            right = right and torch.equal(x.grad.cpu(), expected)
    return right


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize("name", ["nccl", "nccl-legacy"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("how", ["sizes", "no sizes", "list"])
def test_a_gather_is_waited_for_on_another_stream(how: str, dim: int, name: str, backend: str) -> None:
    """Its rows are right, whatever the stream that it was started on does meanwhile."""
    with World(WORLD, name, join=False) as world:
        assert world.run(wrong_on_another_stream, how, dim) == [0] * WORLD


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_on_a_side_stream(dim: int, backend: str) -> None:
    """The sum over ranks in the backward runs on the stream of the forward."""
    with World(WORLD, "nccl", join=False) as world:
        assert world.run(gradients_on_a_side_stream, dim) == [True] * WORLD
