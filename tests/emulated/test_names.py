# SPDX-License-Identifier: MIT
"""Every name that torch has for NCCL takes NCCL's way: the same launches."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

import shared_distributed as core
from tests.emulated.calls import counted
from tests.support import World
from tests.support.world import device

NAMES = ["nccl", "nccl-legacy", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl-legacy"]
WORLD = 4

# ------------------------------------------------------------------ on ranks


def launches() -> dict[str, tuple[int, int]]:
    """Launches of NCCL, and the operations in them, of gathers and of the sum in a backward."""
    rank = dist.get_rank()
    ragged = [100 * (r + 1) for r in range(WORLD)]
    calls = {"even": [300] * WORLD, "ragged": ragged, "unsized": None}
    found = {}
    for name, sizes in calls.items():
        rows = torch.ones((sizes or ragged)[rank], 200, device=device())
        counts = counted(partial(core.all_gather, rows, sizes=sizes))
        found[name] = (counts.nccl_launches, counts.nccl_operations)
    for name, sizes in {"even": [300] * WORLD, "ragged": ragged}.items():
        x = torch.ones(sizes[rank], 200, device=device(), requires_grad=True)
        gathered, _ = core.all_gather(x, sizes=sizes)
        arriving = torch.ones_like(gathered)
        counts = counted(partial(torch.autograd.grad, gathered, x, arriving, retain_graph=True))
        found[f"{name}, backward"] = (counts.nccl_launches, counts.nccl_operations)
    return found


def small_rows_in_a_mixed_group() -> tuple[bool, int]:
    """Whether few rows of CUDA tensors arrive, and how many launches they take."""
    rank = dist.get_rank()
    rows = torch.full((rank + 1, 3), float(rank), device=device())
    counts = counted(lambda: core.all_gather(rows))
    gathered, _ = core.all_gather(rows)
    expected = torch.cat([torch.full((r + 1, 3), float(r)) for r in range(dist.get_world_size())])
    return torch.equal(gathered.cpu(), expected), counts.nccl_launches


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize("name", NAMES)
def test_all_names_take_one_way(name: str, backend: str) -> None:
    """One launch for rows of known sizes and one for sums; a second for the header, on NCCL or on gloo."""
    with World(WORLD, name) as world:
        for found in world.run(launches):
            unsized, _ = found.pop("unsized")
            assert unsized in ((1, 2) if "gloo" in name else (2,))
            assert found == {
                "even": (1, 1),
                "ragged": (1, WORLD),
                "even, backward": (1, 1),
                "ragged, backward": (1, WORLD),
            }


def test_rows_of_cuda_tensors_do_not_come_with_a_header_on_the_cpu(backend: str) -> None:
    """In a mixed group the header may go over gloo, whose message reads the CPU's memory."""
    with World(3, "cpu:gloo,cuda:nccl") as world:
        for right, launched in world.run(small_rows_in_a_mixed_group):
            assert right
            assert launched in (1, 2)
