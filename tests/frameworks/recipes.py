# SPDX-License-Identifier: MIT
"""Every recipe, run as it stands on 2 and on 3 ranks, gives what one process gives that sees every row."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.frameworks import rank as page_runner
from tests.frameworks.rank import STEPS, Towers, rows_of

WORLDS = [2, 3]
Loss = Callable[[Tensor, Tensor], Tensor]


def run_page(page: str, world: int, folder: Path) -> list[Any]:
    """What each rank saved."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", page_runner.__file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, *launch, page, str(folder)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]


def contrast(left: Tensor, right: Tensor) -> Tensor:
    return cross_entropy(left @ right.T, torch.arange(len(left)))


def trained_alone(world: int, loss: Loss, epochs: int = 1, model: nn.Module | None = None) -> dict[str, Tensor]:
    """The weights of one process that sees the rows of every rank at each step."""
    model = model or Towers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(epochs):
        for step, sizes in enumerate(STEPS[world]):
            rows = torch.cat([rows_of(step, rank, n) for rank, n in enumerate(sizes)])
            optimizer.zero_grad()
            loss(*model(rows)).backward()
            optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


def check(found: list[Any], expected: dict[str, Tensor]) -> None:
    """To 1e-5, on every rank; and the weights have moved."""
    for weights in found:
        for name, value in expected.items():
            error = ((weights[name] - value).norm() / value.norm()).item()
            assert error < 1e-5, f"{name}: relative error {error:.1e}"
    fresh = Towers().state_dict()
    assert all((expected[name] - fresh[name]).norm() > 1e-3 for name in fresh if name in expected)


@pytest.mark.parametrize("world", WORLDS)
def test_lightning(world: int, tmp_path: Path) -> None:
    """A LightningModule, then Fabric."""
    pytest.importorskip("lightning")
    check(run_page("lightning", world, tmp_path), trained_alone(world, contrast, epochs=2))
