# SPDX-License-Identifier: MIT
"""Very many ragged gathers, forward and backward, and what they leave behind."""

import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from tests.support.gather import gather_by, make_input, make_sizes
from tests.support.oracle import Case, gathered, gradient, upstream

SUBJECTS = ("core sum", "core local", "musiclm sum", "spear-tts local", "mirasol local", "st-moe local")
DTYPES = ("float32", "bfloat16", "float64")
GIVEN = ("no", "list", "tensor")
PERIOD = 89  # calls until the same case comes again: a prime, so that each case meets every subject


class Footprint(NamedTuple):
    """What a rank holds of the machine."""

    resident: int  # bytes
    files: int
    blocks: int  # allocated by Python: one or more for each object that stays


def footprint() -> Footprint:
    """What is held after everything that can be given back has been."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps freed memory, more or less of it from run to run
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(list(Path("/proc/self/fd").iterdir()))
    return Footprint(pages * os.sysconf("SC_PAGE_SIZE"), files, sys.getallocatedblocks())


def case_of(call: int, world: int) -> Case:
    """The n-th call: sizes, dim, dtype, way of passing sizes and contiguity change; one in a period is large."""
    turn = call % PERIOD
    if turn == 0:  # 1 MiB a rank: point to point
        return Case(tuple(256 + 64 * rank for rank in range(world)), 0, "float32", "no", other=(1, 1024))
    sizes = tuple((turn * (rank + 2) + 3 * rank) % 7 for rank in range(world))
    return Case(sizes, turn % 2, DTYPES[turn % 3], GIVEN[turn // 3 % 3], contiguous=turn % 4 != 0)


def calls(first: int, last: int) -> tuple[list[str], Footprint]:
    """Calls first to last - 1: those that were not exact, and what is held after them."""
    return [f"call {call}: {subject_of(call)}" for call in range(first, last) if not is_exact(call)], footprint()


def subject_of(call: int) -> str:
    return SUBJECTS[call % len(SUBJECTS)]


def is_exact(call: int) -> bool:
    """One call, forward and backward, compared with the oracle bit for bit."""
    rank, subject, case = dist.get_rank(), subject_of(call), case_of(call, dist.get_world_size())
    x = make_input(case, rank).requires_grad_()
    result, _ = gather_by(subject)(x, case.dim, make_sizes(case))
    (found,) = torch.autograd.grad(result, x, upstream(rank, result.shape, case.dtype))
    return torch.equal(result, gathered(case)) and torch.equal(found, gradient(case, rank, subject.split()[1]))
