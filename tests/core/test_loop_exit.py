# SPDX-License-Identifier: MIT
"""How processes end after `until_all_done`."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.only_over("gloo", reason="about the gloo threads of any backend")

LEAVES = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from shared_distributed import until_all_done

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
store = dist.FileStore(str(folder / "store"), 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
for step, _ in enumerate(until_all_done([torch.ones(1)] * 3)):
    if rank == 1 and step == 1:
        break
    while step == 1 and not (folder / "go on").exists():
        time.sleep(0.05)
dist.destroy_process_group()
"""


def started(rank: int, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", LEAVES, str(rank), str(folder)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)


def test_a_rank_that_left_early_can_end_while_the_others_are_elsewhere(tmp_path: Path) -> None:
    """Its word waits for the others, its process does not; at their next step the others get an error."""
    first, second = started(0, tmp_path), started(1, tmp_path)
    try:
        begin = time.monotonic()
        _, said = second.communicate(timeout=60)
        assert second.returncode == 0, said
        assert time.monotonic() - begin < 30
        assert first.poll() is None
        (tmp_path / "go on").touch()
        _, said = first.communicate(timeout=60)
        assert first.returncode == 1
        assert "until_all_done" in said
        assert "Error" in said
    finally:
        first.kill()
        second.kill()
