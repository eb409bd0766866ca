# SPDX-License-Identifier: MIT
"""Groups other than the default one."""

import pytest
import torch
import torch.distributed as dist

import shared_distributed as core
from tests.support import World
from tests.support.world import device


def even_sums_in_pairs() -> bool:
    """The summed gradient of even gathers in two groups of two, of which none is the default group."""
    rank = dist.get_rank()
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    group = pairs[rank // 2]
    x = torch.full((2, 3), float(rank), device=device(), requires_grad=True)
    gathered, sizes = core.all_gather(x, group=group, sizes=[2, 2])
    weights = torch.arange(4.0, device=device())[:, None] + 10 * rank
    (gathered * weights).sum().backward()
    first = rank // 2 * 2
    rows = torch.arange(4.0)[2 * (rank % 2) :][:2, None].expand(2, 3)
    assert x.grad is not None
    return tuple(sizes) == (2, 2) and torch.equal(x.grad.cpu(), 2 * rows + 10 * (first + first + 1))


@pytest.mark.parametrize("name", ["nccl", "nccl-legacy"])
def test_even_sums_stay_in_their_group(name: str, backend: str) -> None:
    """They are summed over the two ranks of a pair, and not over all."""
    with World(4, name) as world:
        assert world.run(even_sums_in_pairs) == [True] * 4
