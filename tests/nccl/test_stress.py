# SPDX-License-Identifier: MIT
"""Random calls while every kernel and every launch of NCCL is late by a random time."""

from collections.abc import Iterator
from random import Random

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.emulated.calls import settings
from tests.support import World
from tests.support.adapters import SUBJECTS
from tests.support.gather import gather_by, run_case
from tests.support.oracle import DTYPES, Case, gathered, gradient, upstream, values
from tests.support.world import device, join_group

TURNS = 150
KINDS = (*SUBJECTS, "async", "list", "reduce_scatter")
SUMMED = ("float32", "bfloat16", "float64")

# ------------------------------------------------------------------ on ranks


def random_cases(seed: int, world: int) -> Iterator[tuple[str, Case]]:
    """The same on every rank: what is called, and with what."""
    random = Random(seed)
    for _ in range(TURNS):
        kind = random.choice(KINDS)
        dtype = random.choice(SUMMED if kind == "reduce_scatter" else DTYPES)
        dim = random.randrange(3)
        other = tuple(random.choice([1, 2, 5, 12]) for _ in range(3))
        sizes = tuple(random.choice([0, 0, 1, 3, 17, 200]) for _ in range(world))
        if random.random() < 0.2:
            sizes = (random.choice([1, 50]),) * world
        given = random.choice(["no", "list", "tensor"])
        yield kind, Case(sizes, dim, dtype, given, random.random() < 0.7, other)


def overwrite(elements: int) -> None:
    """Write to whatever memory the allocator would give to the next tensors."""
    for _ in range(3):
        torch.full((max(elements, 1),), 0xEE, dtype=torch.uint8, device=device())


def is_same(found: Tensor, expected: Tensor) -> bool:
    same_kind = found.dtype == expected.dtype and found.shape == expected.shape
    if found.element_size() == 1:
        found, expected = found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
    return same_kind and torch.equal(found.cpu(), expected)


def is_right(kind: str, case: Case) -> bool:
    """Whether one call gives this rank what one process computes."""
    rank, expected = dist.get_rank(), gathered(case)
    if kind in SUBJECTS:
        result = run_case(gather_by(kind), case)
        overwrite(expected.numel() * expected.element_size())
        right = is_same(result.gathered, expected)
        if result.gradient is not None:
            right = right and is_same(result.gradient, gradient(case, rank, kind.split()[-1]))
        return right
    sizes = None if case.given == "no" else list(case.sizes)
    if kind == "reduce_scatter":
        whole = upstream(rank, expected.shape, case.dtype).to(device())
        part = core.reduce_scatter(whole, case.dim, sizes=list(case.sizes), check=case.given == "no")
        overwrite(whole.numel() * whole.element_size())
        return is_same(part, gradient(case, rank, "sum"))
    x = values(rank, case.shape(case.sizes[rank]), case.dtype).to(device())
    if kind == "list":
        found, _ = core.all_gather([x, x.clone()], case.dim, sizes=sizes)
    else:
        started = [core.all_gather_async(x, case.dim, sizes=sizes) for _ in range(2)]
        overwrite(expected.numel() * expected.element_size())
        found = [gathering.wait()[0] for gathering in reversed(started)]
    del x
    overwrite(expected.numel() * expected.element_size())
    return all(is_same(one, expected) for one in found)


def wrong_calls(seed: int) -> list[tuple[str, Case]]:
    settings(kernel_delay=300, nccl_delay=2000)
    join_group()
    return [(kind, case) for kind, case in random_cases(seed, dist.get_world_size()) if not is_right(kind, case)]


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize("name", ["nccl", "nccl-legacy", "cpu:gloo,cuda:nccl"])
@pytest.mark.parametrize(("size", "seed"), [(2, 0), (3, 1), (4, 2)])
def test_random_calls_with_delays(size: int, seed: int, name: str, backend: str) -> None:
    """Every dtype, dim, kind of sizes, adapter and gradient, in any order."""
    with World(size, name, join=False) as world:
        assert world.run(wrong_calls, seed) == [[]] * size
