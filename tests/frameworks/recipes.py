# SPDX-License-Identifier: MIT
"""Every recipe, run as it stands on 2 and on 3 ranks, gives what one process gives that sees every row."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from tests.frameworks import rank as page_runner
from tests.frameworks.rank import (
    DATASET,
    STEPS,
    Towers,
    batches_of,
    classes_of,
    rows_of,
    sentence_encoder,
    sentence_pairs,
)

DOCS = Path(__file__).parents[2] / "shared/distributed/docs"
WORLDS = [2, 3]
Loss = Callable[..., Tensor]


def run_page(page: str, world: int, folder: Path, right: str = "", wrong: str = "") -> list[Any]:
    """What each rank saved; `right` in the page may be replaced by what is wrong."""
    text = (DOCS / f"{page}.md").read_text()
    assert right in text
    (folder / f"{page}.md").write_text(text.replace(right, wrong) if right else text)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", page_runner.__file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, *launch, str(folder / f"{page}.md"), str(folder)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]


def contrast(left: Tensor, right: Tensor) -> Tensor:
    return cross_entropy(left @ right.T, torch.arange(len(left)))


def ragged(world: int) -> list[Tensor]:
    """The rows of every rank, step by step."""
    return [torch.cat([rows_of(i, rank, n) for rank, n in enumerate(sizes)]) for i, sizes in enumerate(STEPS[world])]


def dealt(world: int) -> list[Tensor]:
    """The dataset in batches of two, one to a rank at each step; the last step has fewer."""
    return list(DATASET.split(2 * world))


def trained_alone(
    world: int, loss: Loss, epochs: int = 1, model: nn.Module | None = None, steps: list[Tensor] | None = None
) -> dict[str, Tensor]:
    """The weights of one process that sees the rows of every rank at each step."""
    model = model or Towers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows in (steps or ragged(world)) * epochs:
        optimizer.zero_grad()
        loss(*model(rows)).backward()
        optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


def error_of(found: list[Any], expected: dict[str, Tensor]) -> float:
    """The largest relative error of any weight on any rank."""
    return max(((weights[name] - e).norm() / e.norm()).item() for weights in found for name, e in expected.items())


def check(found: list[Any], expected: dict[str, Tensor]) -> None:
    """To 1e-5, on every rank; and the weights have moved."""
    assert error_of(found, expected) < 1e-5
    fresh = Towers().state_dict()
    assert all((expected[name] - fresh[name]).norm() > 1e-3 for name in fresh if name in expected)


@pytest.mark.parametrize("world", WORLDS)
def test_lightning(world: int, tmp_path: Path) -> None:
    """A LightningModule, then Fabric."""
    pytest.importorskip("lightning")
    check(run_page("lightning", world, tmp_path), trained_alone(world, contrast, epochs=2))


@pytest.mark.parametrize("world", WORLDS)
def test_accelerate(world: int, tmp_path: Path) -> None:
    """A loader of each rank's own, then one that accelerate deals out."""
    pytest.importorskip("accelerate")
    model = Towers()
    trained_alone(world, contrast, model=model)
    check(run_page("accelerate", world, tmp_path), trained_alone(world, contrast, model=model, steps=dealt(world)))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("page", ["fsdp2", "gradcache"])
def test_contrastive_training(page: str, world: int, tmp_path: Path) -> None:
    """The same loss on shards, and in mini-batches."""
    check(run_page(page, world, tmp_path), trained_alone(world, contrast))


class Clip(nn.Module):
    """What open_clip's models give to its losses."""

    def __init__(self, towers: Towers) -> None:
        super().__init__()
        self.towers = towers
        self.logit_scale, self.logit_bias = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(-0.5))

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        return *self.towers(rows), self.logit_scale.exp(), self.logit_bias


def clip_loss(images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """open_clip's ClipLoss of one process."""
    logits, labels = scale * images @ texts.T + bias, torch.arange(len(images))
    return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2


def siglip_loss(images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """open_clip's SigLipLoss of one process."""
    labels = 2 * torch.eye(len(images)) - torch.ones(len(images), len(images))
    return -logsigmoid(labels * (scale * images @ texts.T + bias)).sum() / len(images)


@pytest.mark.parametrize("world", WORLDS)
def test_open_clip(world: int, tmp_path: Path) -> None:
    """An epoch with ClipLoss, then one with SigLipLoss; the scale and the bias are right too."""
    model = Clip(Towers())
    trained_alone(world, clip_loss, model=model)
    check(run_page("open-clip", world, tmp_path), trained_alone(world, siglip_loss, model=model))


class Embedder(Towers):
    """One embedding of each row, and its class."""

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        left, right = super().forward(rows)
        return left + right, classes_of(rows)


@pytest.mark.parametrize("world", WORLDS)
def test_pytorch_metric_learning(world: int, tmp_path: Path) -> None:
    """A loss with labels, in the wrapper that multiplies by W."""
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    expected = trained_alone(world, losses.NTXentLoss(), model=Embedder())
    check(run_page("pytorch-metric-learning", world, tmp_path), expected)


@pytest.mark.parametrize("world", WORLDS)
def test_torchmetrics(world: int, tmp_path: Path) -> None:
    """States of other lengths on each rank."""
    classification = pytest.importorskip("torchmetrics.classification")
    rows = torch.cat([batch for rank in range(world) for batch in batches_of(rank, world)])
    scores, targets = rows[:, 0].sigmoid(), (rows[:, 1] > 0).long()
    for found in run_page("torchmetrics", world, tmp_path):
        torch.testing.assert_close(found["auroc"], classification.BinaryAUROC()(scores, targets))
        torch.testing.assert_close(found["mean"], scores.mean())
        assert torch.equal(found["scores"], scores)


@pytest.mark.parametrize("world", WORLDS)
def test_transformers(world: int, tmp_path: Path) -> None:
    """Two epochs of the Trainer's own loader, without the rows that it would repeat."""
    pytest.importorskip("transformers")
    check(run_page("transformers", world, tmp_path), trained_alone(world, contrast, epochs=2, steps=dealt(world)))


def encoder_trained_alone(world: int) -> dict[str, Tensor]:
    """Two epochs in one process with the library's own loss."""
    losses = importlib.import_module("sentence_transformers.sentence_transformer.losses")
    encoder, pairs = sentence_encoder(), sentence_pairs()
    loss = losses.MultipleNegativesRankingLoss(encoder)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.5)
    for start in [*range(0, len(DATASET), 2 * world)] * 2:
        rows = slice(start, start + 2 * world)
        optimizer.zero_grad()
        loss([encoder.preprocess(pairs[column][rows]) for column in ("query", "document")], None).backward()
        optimizer.step()
    return {name: value.detach() for name, value in encoder.state_dict().items()}


@pytest.mark.parametrize("world", WORLDS)
def test_sentence_transformers(world: int, tmp_path: Path) -> None:
    """Two epochs of its own Trainer, without dropped rows."""
    pytest.importorskip("sentence_transformers")
    check(run_page("sentence-transformers", world, tmp_path), encoder_trained_alone(world))


# ------------------------------------------------------------------ the traps, which nothing complains about


def test_transformers_repeats_rows(tmp_path: Path) -> None:
    """With `even_batches`, its default."""
    pytest.importorskip("transformers")
    found = run_page("transformers", 2, tmp_path, '"even_batches": False', '"even_batches": True')
    assert error_of(found, trained_alone(2, contrast, epochs=2, steps=dealt(2))) > 1e-3


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("arguments.dataloader_drop_last = False\n", "assert arguments.dataloader_drop_last\n"),
        ("+ sizes.start", "+ sizes.rank * len(queries) % sizes.total"),
    ],
    ids=["drop_last", "rank * batch_size"],
)
def test_sentence_transformers_by_itself(right: str, wrong: str, tmp_path: Path) -> None:
    """It drops the last rows, and its labels are right for equally many rows only."""
    pytest.importorskip("sentence_transformers")
    found = run_page("sentence-transformers", 3, tmp_path, right, wrong)
    assert error_of(found, encoder_trained_alone(3)) > 1e-3


def test_pytorch_metric_learning_multiplies_by_w(tmp_path: Path) -> None:
    """The default gradient is W times too large there."""
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    found = run_page("pytorch-metric-learning", 2, tmp_path, ', grad="local"', "")
    assert error_of(found, trained_alone(2, losses.NTXentLoss(), model=Embedder())) > 1e-2
