# SPDX-License-Identifier: MIT
"""A training run under torchrun that loses a rank."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.restart import STEPS, train
from tests.support import Worlds

pytestmark = pytest.mark.only_over("gloo", reason="the run under torchrun is on gloo")

WORLD = 3
ROOT = Path(__file__).resolve().parents[2]


def test_a_run_that_loses_a_rank_ends_with_the_same_losses(tmp_path: Path, worlds: Worlds) -> None:
    """`--max-restarts 1`: killed once in step 8 of 10, begun again from what was saved after 6, equal bit for bit."""
    (tmp_path / "undisturbed").mkdir()
    expected = worlds.get("gloo", WORLD).run(train, str(tmp_path / "undisturbed"))
    assert [len(losses) for losses in expected] == [STEPS] * WORLD

    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={WORLD}"]
    command += ["--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    command += ["-m", "tests.core.restart", str(tmp_path)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    # else torchrun keeps one store for all lives, and ranks find the dead ones' addresses in it (pytorch #135712)
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr

    lives = {note.stem: json.loads(note.read_text()) for note in sorted(tmp_path.glob("life-*.json"))}
    assert sorted(lives) == [f"life-{life}-rank-{rank}" for life in (0, 1) for rank in range(WORLD)]
    assert [lives[f"life-0-rank-{rank}"] for rank in range(WORLD)] == [[]] * WORLD, "nobody lost a rank"
    assert [lives[f"life-1-rank-{rank}"] for rank in range(WORLD)] == expected
