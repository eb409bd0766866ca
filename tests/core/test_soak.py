# SPDX-License-Identifier: MIT
"""Very many calls leave nothing behind. A few hundred here; `nox -s soak` makes 20,000."""

import os
import time

import pytest

from tests.core.soak import PERIOD, calls
from tests.support import Worlds

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
