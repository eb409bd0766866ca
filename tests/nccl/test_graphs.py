# SPDX-License-Identifier: MIT
"""Gathers in CUDA graphs: with sizes they are captured, without sizes an error says what to do."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.support import World
from tests.support.calls import Outcome, attempt
from tests.support.world import device

WORLD = 2


def rows(start: float) -> Tensor:
    return torch.arange(3.0, device=device()) + start + 100 * dist.get_rank()


def captured(dim: int) -> list[Any]:
    """A gather of two values of the input, captured once and replayed twice."""
    rank, graph = dist.get_rank(), torch.cuda.CUDAGraph()
    x = torch.zeros((rank + 1, 3) if dim == 0 else (3, rank + 1), device=device())
    sizes = [r + 1 for r in range(WORLD)]
    core.all_gather(x, dim, sizes=sizes)  # a communicator is made
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        gathered, _ = core.all_gather(x, dim, sizes=sizes)
    found = []
    for start in (1.0, 20.0):
        x.copy_(rows(start).expand(rank + 1, 3) if dim == 0 else rows(start)[:, None].expand(3, rank + 1))
        graph.replay()
        found.append(gathered.tolist())
    return found


def expected_from_graph(dim: int) -> list[Any]:
    found = []
    for start in (1.0, 20.0):
        parts = [(torch.arange(3.0) + start + 100 * r).expand(r + 1, 3) for r in range(WORLD)]
        whole = torch.cat(parts)
        found.append((whole if dim == 0 else whole.T).tolist())
    return found


def captured_without_sizes() -> tuple[Outcome, list[int]]:
    """The error of a captured call, and a call after it."""
    x = torch.ones(dist.get_rank() + 1, 3, device=device())
    core.all_gather(x)
    torch.cuda.synchronize()

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            core.all_gather(x)

    outcome = attempt(capture)
    torch.cuda.synchronize()
    return outcome, list(core.all_gather(x)[1])


@pytest.mark.parametrize("name", ["nccl", "nccl-legacy"])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_gather_with_sizes_is_captured(dim: int, name: str, backend: str) -> None:
    """Each replay gathers what the input holds then."""
    with World(WORLD, name) as world:
        assert world.run(captured, dim) == [expected_from_graph(dim)] * WORLD


def test_a_captured_call_without_sizes_says_what_to_do(backend: str) -> None:
    """The host has to read the sizes, which a graph cannot: an error before anything is sent."""
    with World(WORLD, "nccl") as world:
        for outcome, sizes in world.run(captured_without_sizes):
            assert "CUDA graph" in outcome.message, outcome
            assert "sizes" in outcome.message
            assert sizes == [1, 2]
