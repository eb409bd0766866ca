# SPDX-License-Identifier: MIT
"""Very many calls leave nothing behind. A few hundred here; `nox -s soak` makes 20,000."""

import ctypes
import gc
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from tests.support import Worlds
from tests.support.adapters import UNLIKE
from tests.support.gather import gather_by, make_input, make_sizes
from tests.support.oracle import Case, gathered, gradient, upstream

# ------------------------------------------------------------------ on ranks

SUBJECTS = ("core sum", "core local", "musiclm sum", *(f"{name} local" for name in UNLIKE if name != "musiclm"))
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


# ------------------------------------------------------------------ tests

pytestmark = pytest.mark.only_over("gloo", reason="what is watched is the memory and the files of processes on gloo")

WORLD = 4
CALLS = int(os.environ.get("SOAK_CALLS", 4 * PERIOD))
WARM_UP = max(2 * PERIOD, CALLS // 10)
BLOCK = max(PERIOD, CALLS // 20)

# What may be added after the warm-up. Resident bytes: 2.7 KB a call are torch's own record of the last 2,000
# collectives, full after 1,000 calls; one gathered tensor of the large case that stayed would be 1.4 MiB.
RESIDENT = 1 << 20
# Python's blocks: caches that still fill, and one in ten calls; whatever a call leaves behind takes a dozen a call.
BLOCKS, BLOCKS_A_CALL = 1000, 0.1


def test_many_calls_leave_nothing_behind(worlds: Worlds, capsys: pytest.CaptureFixture[str]) -> None:
    """Every result exact to the last call; memory, open files and Python's objects as after the warm-up."""
    started = time.monotonic()
    seen = []  # calls made, and what each rank then held
    for first in range(0, CALLS, BLOCK):
        done = min(first + BLOCK, CALLS)
        answers = worlds.get("gloo", WORLD).run(calls, first, done)
        assert [wrong for wrong, _ in answers] == [[]] * WORLD
        held = [footprint for _, footprint in answers]
        if done >= WARM_UP:
            seen.append((done, held))
        if "SOAK_CALLS" in os.environ:
            shown = "  ".join(f"{h.resident / 2**20:.2f} MiB, {h.files} files, {h.blocks} blocks" for h in held)
            with capsys.disabled():
                print(f"\n{done:6} calls {time.monotonic() - started:5.0f} s   {shown}", end="", flush=True)
    (warm, before), (done, after) = seen[0], seen[-1]
    assert done - warm >= PERIOD
    for rank, (then, now) in enumerate(zip(before, after, strict=True)):
        grown = f"rank {rank} of {WORLD}, from {warm} to {done} calls: {then} to {now}"
        assert now.resident - then.resident < RESIDENT, grown
        assert now.files <= then.files, grown
        assert now.blocks - then.blocks < BLOCKS + BLOCKS_A_CALL * (done - warm), grown
