# SPDX-License-Identifier: MIT
"""Small things a rank does in the harness's own tests."""

import os
import signal
import time

import torch
import torch.distributed as dist


def whoami() -> tuple[int, int, int]:
    return dist.get_rank(), dist.get_world_size(), os.getpid()


def total() -> float:
    t = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(t)
    return t.item()


def fail_on(rank: int) -> str:
    if dist.get_rank() == rank:
        msg = f"rank {rank} was told to fail"
        raise LookupError(msg)
    return "fine"


def sleep_on(rank: int, seconds: float) -> str:
    if dist.get_rank() == rank:
        a_telling_name_for_the_stack(seconds)
    return "fine"


def a_telling_name_for_the_stack(seconds: float) -> None:
    time.sleep(seconds)


def die_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def abort_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os.abort()
    time.sleep(60)


def enter_collective_unless(rank: int) -> None:
    if dist.get_rank() != rank:
        dist.all_reduce(torch.ones(1))


def is_initialized() -> bool:
    return dist.is_initialized()


def remember(key: str) -> int:
    """How often this process was asked with this key: shows that workers persist, and fresh ones do not."""
    _seen[key] = _seen.get(key, 0) + 1
    return _seen[key]


_seen: dict[str, int] = {}
