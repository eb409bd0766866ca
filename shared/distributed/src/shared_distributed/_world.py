# SPDX-License-Identifier: MIT
"""What the world looks like: who am I, how many are we, which backend serves a device."""

from functools import lru_cache
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

Group: TypeAlias = ProcessGroup | None


def is_distributed(group: Group = None) -> bool:
    """Whether there is a process group, and more than one rank in it. Asked anew at every call.

    >>> is_distributed()
    False
    """
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def rank_and_world(group: Group) -> tuple[int, int]:
    """This rank in the group and the group's size; torch's own error where there is no group."""
    return dist.get_rank(group), dist.get_world_size(group)


def rank_and_world_or_alone(group: Group) -> tuple[int, int]:
    """As above, and rank 0 of 1 where there is no process group at all."""
    return rank_and_world(group) if dist.is_available() and dist.is_initialized() else (0, 1)


def global_rank(rank: int, group: Group) -> int:
    """A rank of the group, counted in the whole world."""
    return rank if group is None else dist.get_global_rank(group, rank)


def is_compiling() -> bool:
    """Whether torch.compile is tracing this call (torch 2.0 cannot, and has no such question)."""
    compiler = getattr(torch, "compiler", None)
    return compiler is not None and bool(getattr(compiler, "is_compiling", bool)())


def backend_by_device(group: Group) -> dict[str, str]:
    """The backend that serves each device type in a group: `{'cpu': 'gloo', 'cuda': 'nccl'}`."""
    return _parse_backends(str(dist.get_backend_config(group)))


@lru_cache
def _parse_backends(config: str) -> dict[str, str]:
    return dict(entry.split(":", 1) for entry in config.split(",") if ":" in entry)


def control_device(group: Group) -> torch.device:
    """Where headers travel: the CPU if the group serves it, else this process's accelerator.

    Read from the group alone and never from a tensor, so that a rank that passes a tensor on the
    wrong device still meets the others in one and the same collective.
    """
    served = backend_by_device(group)
    if "cpu" in served:
        return torch.device("cpu")
    device_type = next(iter(served))
    return torch.device(device_type, getattr(torch, device_type).current_device())
