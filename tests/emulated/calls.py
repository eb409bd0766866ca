# SPDX-License-Identifier: MIT
"""What the tests of this room call on ranks: settings and counters of the emulation."""

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import torch

from tests.support.world import is_emulated

COUNTERS = 11  # of libraries/emulator.h


class Counts(NamedTuple):
    """What happened on this rank's GPU, in the order of libraries/emulator.h."""

    kernels: int  # operators, each counted once
    host_to_device: int
    device_to_host: int
    device_to_device: int
    memsets: int
    stream_syncs: int
    event_syncs: int
    device_syncs: int
    nccl_launches: int
    nccl_operations: int
    allocations: int

    @property
    def syncs(self) -> int:
        """How often the host waited."""
        return self.stream_syncs + self.event_syncs + self.device_syncs

    def without_allocations(self) -> "Counts":
        """The allocator keeps memory, and asks for more when it happens to have none."""
        return self._replace(allocations=0)


def counted(call: Callable[[], object]) -> Counts:
    """What one call does, after two that may have made what is kept."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    library = ctypes.CDLL("libemulated.so")
    library.emulated_reset_counters()
    result = call()
    values = (ctypes.c_long * COUNTERS)()
    library.emulated_counters(values)
    del result
    torch.cuda.synchronize()
    return Counts(*values)


def settings(kernel_delay: int = 0, nccl_delay: int = 0, patience: int = 60) -> None:
    """From now on, in this process. Without effect on real GPUs.

    kernel_delay: every kernel is late by a random time of at most so many microseconds
    nccl_delay: so is every launch of NCCL, and so are its results
    patience: seconds that a launch waits for the other ranks
    """
    if is_emulated():
        ctypes.CDLL("libemulated.so").emulated_set(kernel_delay, nccl_delay, patience)
