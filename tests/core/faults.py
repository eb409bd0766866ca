# SPDX-License-Identifier: MIT
"""Ranks that die, stop, or go another way in the middle of a call; what the others then see."""

import importlib
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.support.hosts import address
from tests.support.oracle import values
from tests.support.world import place

fast = importlib.import_module("shared_distributed._fast")

LARGE = (1 << 20, 4)  # 16 MiB a rank: point to point, and long enough to be in the middle of


class Seen(NamedTuple):
    """What a call ended in on one rank, and after how many seconds."""

    error: str
    message: str
    seconds: float


def observe(call: Callable[[], Any]) -> Seen:
    started = time.monotonic()
    try:
        call()
    except Exception as error:  # any error is a result here
        return Seen(type(error).__name__, str(error), time.monotonic() - started)
    return Seen("", "", time.monotonic() - started)


def lost_at(stage: str, victim: int, how: str) -> Seen:
    """A gather, and for stage "backward" its summed backward, in which one rank gets a signal."""
    rank = dist.get_rank()
    x = torch.full(LARGE, float(rank)) if stage == "data" else values(rank, (rank + 1, 3), "float32")
    x.requires_grad_()
    dist.barrier()  # every rank is ready, and every pair connected, before anything happens
    if rank == victim:
        _arm(stage, getattr(signal, how))

    def call() -> None:
        gathered, _ = core.all_gather(x)
        (gathered * (rank + 1)).sum().backward()

    return observe(call)


def _arm(stage: str, number: int) -> None:
    """Let this process get a signal at a stage of its next gather."""

    def strike(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), number)

    if stage == "exchange":
        fast.FastCall.spread = strike
    elif stage == "backward":
        fast.TRANSPORTS["gloo"] = fast.TRANSPORTS["gloo"]._replace(total=strike)
    else:  # before its first send: later, a rank may have all that it needs of this one
        fast.TRANSPORTS["gloo"] = fast.TRANSPORTS["gloo"]._replace(gather=strike)


def lost_store(timeout: float, how: str) -> Seen:
    """Rank 0 holds the TCP store, and gets a signal: there is nobody left to ask."""
    where = place()
    note = Path(where.folder) / "port"
    if where.rank == 0:
        store = dist.TCPStore(address(), 0, where.size, is_master=True, wait_for_workers=False)
        (note.with_suffix(".new")).write_text(f"{address()} {store.port}")
        note.with_suffix(".new").replace(note)
    else:
        for _ in range(600):
            if note.exists():
                break
            time.sleep(0.05)
        host, port = note.read_text().split()
        store = dist.TCPStore(host, int(port), where.size)
    patience = timedelta(seconds=timeout)
    dist.init_process_group("gloo", store=store, rank=where.rank, world_size=where.size, timeout=patience)
    dist.barrier()
    if where.rank == 0:
        os.kill(os.getpid(), getattr(signal, how))
    return observe(lambda: core.all_gather(torch.ones(where.rank, 2)))


def raises_between(goes_on: bool) -> Seen:
    """Rank 1 fails in its own code before the summed backward; it stops there, or goes on with the next batch."""
    rank = dist.get_rank()
    dist.barrier()
    x = values(rank, (rank + 1, 3), "float32").requires_grad_()

    def call() -> None:
        gathered, _ = core.all_gather(x)
        if rank != 1:
            (gathered * (rank + 1)).sum().backward()
        elif goes_on:
            core.all_gather(x)
        else:
            raise ZeroDivisionError("the user's own")

    return observe(call)


def out_of_order(kind: str) -> Seen:
    """Rank 0 does first what the others do second."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    x = values(rank, (2, 3), "float32")
    sizes = [2] * world

    def scatter() -> Tensor:
        return core.reduce_scatter(torch.ones(2 * world, 3), sizes=sizes, check=False)

    calls: list[Callable[[], Any]] = {
        "two gathers": [lambda: core.all_gather(x), lambda: core.all_gather(x.double())],
        "with a scatter": [lambda: core.all_gather(x), scatter],
        "with an all-reduce": [lambda: core.all_gather(x), lambda: dist.all_reduce(torch.ones(1000))],
    }[kind]

    def call() -> None:
        for one in calls if rank == 0 else reversed(calls):
            one()

    return observe(call)


def two_groups() -> Seen:
    """Two groups of two; in each, one rank never comes: the second of the first one, the first of the second."""
    rank = dist.get_rank()
    patience = timedelta(seconds=place().timeout)  # a new group has its own, of half an hour
    groups = [dist.new_group(members, timeout=patience) for members in ([0, 1], [2, 3])]
    dist.barrier()
    if rank in (1, 2):
        time.sleep(1)
        return Seen("", "", 0.0)
    return observe(lambda: core.all_gather(torch.ones(rank + 1), group=groups[rank // 2]))
