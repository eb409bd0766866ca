# SPDX-License-Identifier: MIT
"""A CPU tensor on one rank of a group that NCCL alone serves, where nobody has called `torch.cuda.set_device`."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shared_distributed as core
from tests.emulated.calls import settings
from tests.support import Deadlines, World
from tests.support.calls import Outcome, attempt
from tests.support.world import place

WORLD = 2


def cpu_tensor_on_rank_1(known_by: str) -> tuple[Outcome, Any]:
    """A call to which rank 1 brings a CPU tensor, and a right one after it.

    known_by: how the group's device is known: the backend finds it by itself ("backend"), from `device_id`, or from
    the group's last call ("last call").
    """
    settings(patience=15)
    here = place()
    torch.cuda.set_device(0)  # what it is before anybody sets it
    mine = torch.device("cuda", here.rank)
    store = dist.FileStore(str(Path(here.folder) / "store"), here.size)
    options = {"device_id": mine} if known_by == "device_id" else {}
    timeout = timedelta(seconds=10)
    dist.init_process_group(here.backend, store=store, rank=here.rank, world_size=here.size, timeout=timeout, **options)
    rows = torch.ones(2 + here.rank, 3, device=mine)
    if known_by == "last call":
        core.all_gather(rows)
    outcome = attempt(lambda: core.all_gather(rows.cpu() if here.rank == 1 else rows))
    return outcome, tuple(core.all_gather(rows)[1])


@pytest.mark.parametrize(
    ("name", "known_by"),
    [
        ("nccl", "backend"),
        ("nccl", "device_id"),
        ("nccl", "last call"),
        ("nccl-legacy", "device_id"),
        ("nccl-legacy", "last call"),
    ],
)
def test_a_cpu_tensor_is_one_error_on_every_rank(name: str, known_by: str, backend: str) -> None:
    """The header still goes to the device that the group uses on this rank; then the group goes on."""
    with World(WORLD, name, join=False, deadlines=Deadlines(case=40.0)) as world:
        answers = world.run(cpu_tensor_on_rank_1, known_by)
    assert [outcome.error for outcome, _ in answers] == ["BadInputError"] * WORLD
    assert len({outcome.message for outcome, _ in answers}) == 1
    assert "rank 1 of 2" in answers[0][0].message
    assert [sizes for _, sizes in answers] == [(2, 3)] * WORLD
