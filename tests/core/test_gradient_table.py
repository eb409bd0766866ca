# SPDX-License-Identifier: MIT
"""README's loop and the table of docs/gradients.md under DDP: each row, with ragged rows and an empty rank."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import shared_distributed as core
from tests.house.pages import blocks
from tests.support import Worlds
from tests.support.oracle import values
from tests.support.world import device

pytestmark = pytest.mark.only_over("gloo", "nccl", reason="DDP calls collectives that nccl-rules does not have")

RAGGED, FULL = (3, 0, 2), (3, 1, 2)
OUTSIDE = "temperature"  # a parameter that no gathered row depends on


class Towers(nn.Module):
    """Two embeddings of each row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(rows).tanh(), self.right(rows).tanh()


class Scored(Towers):
    """With a temperature, which comes after the gather."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))


def rows_of(rank: int, size: int, step: int = 0) -> Tensor:
    return values(rank + 3 * step, (size, 6), "float32") / 97


def mean_over_all_rows(model: nn.Module, rows: Tensor) -> Tensor:
    """What one process that sees every row minimises."""
    left, right = model(rows)
    return cross_entropy(left @ right.T / getattr(model, OUTSIDE, 1.0), torch.arange(len(rows)))


# ------------------------------------------------------------------ the table


def loss_of(row: str, grad: Any, left: Tensor, right: Tensor, temperature: Tensor) -> Tensor:
    """A rank's loss, before the factor that the table gives."""
    if row == "all":
        (lefts, rights), sizes = core.all_gather((left, right), grad=grad)
        return cross_entropy(lefts @ rights.T / temperature, torch.arange(sizes.total, device=left.device))
    rights, sizes = core.all_gather(right, grad=grad)
    labels = torch.arange(len(left), device=left.device) + sizes.start
    return cross_entropy(left @ rights.T / temperature, labels, reduction="sum" if row == "own sum" else "mean")


def gradients_under_ddp(row: str, grad: str, factor: str, sizes: tuple[int, ...]) -> dict[str, Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(Scored().to(device()))
    layout = core.RowLayout(sizes, rank=rank)
    scale = {"ddp_scale": layout.ddp_scale, "rows": sizes[rank] * layout.ddp_scale, "W": world, "1": 1}[factor]
    left, right = model(rows_of(rank, sizes[rank]).to(device()))
    (loss_of(row, grad, left, right, model.module.temperature) * scale).backward()
    return {name: p.grad for name, p in model.module.named_parameters()}


def errors(worlds: Worlds, backend: str, row: str, grad: str, factor: str, sizes: tuple[int, ...]) -> dict[str, float]:
    """The relative error of each parameter's gradient, largest of the ranks."""
    model = Scored()
    mean_over_all_rows(model, torch.cat([rows_of(rank, n) for rank, n in enumerate(sizes)])).backward()
    answers = worlds.get(backend, len(sizes)).run(gradients_under_ddp, row, grad, factor, sizes)

    def error(name: str, expected: Tensor) -> float:
        return max(((a[name] - expected).norm() / expected.norm()).item() for a in answers)

    return {name: error(name, p.grad) for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("row", "factor", "sizes"),
    [
        ("own sum", "ddp_scale", RAGGED),
        ("own mean", "rows", RAGGED),
        ("own mean", "1", (2, 2, 2)),
        ("all", "1", RAGGED),
    ],
)
def test_summed_gradients_that_are_right(
    row: str, factor: str, sizes: tuple[int, ...], backend: str, worlds: Worlds
) -> None:
    """The gradient of the mean over the rows of all ranks, for every parameter."""
    found = errors(worlds, backend, row, "sum", factor, sizes)
    assert max(found.values()) < 1e-5, found


def test_a_mean_over_own_rows_is_not_the_mean_over_all_rows(backend: str, worlds: Worlds) -> None:
    """The trap: the loss that everyone writes, where ranks differ."""
    assert min(errors(worlds, backend, "own mean", "sum", "1", FULL).values()) > 0.02


def test_a_mean_over_no_rows_is_nan_and_a_sum_is_not() -> None:
    """The trap: not in the gradient, but in the loss that is logged."""
    scores, labels = torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)
    assert cross_entropy(scores, labels).isnan()
    assert cross_entropy(scores, labels, reduction="sum").item() == 0


def test_one_loss_times_w_with_local_gradients(backend: str, worlds: Worlds) -> None:
    """Right for parameters before the gather; W times too large for one outside it."""
    found = errors(worlds, backend, "all", "local", "W", RAGGED)
    assert found.pop(OUTSIDE) == pytest.approx(2.0)  # three times the right gradient
    assert max(found.values()) < 1e-5, found


def test_a_framework_that_multiplies_by_w_wants_local_gradients(backend: str, worlds: Worlds) -> None:
    """The trap: with summed ones every gradient is W times too large."""
    found = errors(worlds, backend, "all", "sum", "W", RAGGED)
    assert list(found.values()) == pytest.approx([2.0] * len(found), rel=1e-4)


def test_local_gradients_of_a_loss_of_own_rows_are_wrong(backend: str, worlds: Worlds) -> None:
    """For what is gathered, the other ranks' losses are left out."""
    found = errors(worlds, backend, "own sum", "local", "ddp_scale", RAGGED)
    assert found["right.weight"] > 0.1
    assert found["left.weight"] < 1e-5  # never gathered


# ------------------------------------------------------------------ the loop of README's script

(SCRIPT,) = blocks("README.md")
IMPORTS, LOOP = SCRIPT.split("\n\n\n")[0], SCRIPT[SCRIPT.index("for batch in") : SCRIPT.index("dist.destroy")]
STEPS = {2: [(3, 1), (4, 2), (2, 0)], 3: [(3, 1, 4), (4, 2, 0), (2, 0, 0)]}  # sizes by rank


def weights_by_readme(loop: str, steps: list[tuple[int, ...]]) -> list[Tensor]:
    """The loop, with a model, an optimizer and this rank's own batches."""
    rank = dist.get_rank()
    batches = [rows_of(rank, sizes[rank], step).to(device()) for step, sizes in enumerate(steps)]
    model = DistributedDataParallel(Towers().to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = [batch for batch in batches if len(batch)]  # fewer on some ranks
    names = {"model": model, "optimizer": optimizer, "loader": loader, "rank": rank, "device": device()}
    exec(f"{IMPORTS}\n{loop}", names)
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("world", [2, 3])
def test_the_loop_trains_as_one_process_does(world: int, backend: str, worlds: Worlds) -> None:
    """As it stands, with ragged rows and other numbers of batches: the weights of one process that sees every row."""
    model = Towers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step, sizes in enumerate(STEPS[world]):
        optimizer.zero_grad()
        mean_over_all_rows(model, torch.cat([rows_of(rank, n, step) for rank, n in enumerate(sizes)])).backward()
        optimizer.step()
    for weights in worlds.get(backend, world).run(weights_by_readme, LOOP, STEPS[world]):
        for found, expected in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("+ sizes.start", "+ rank * len(left)"), ('reduction="sum") * sizes.ddp_scale', 'reduction="mean")')],
)
def test_the_loop_is_wrong_without_its_two_lines(right: str, wrong: str, backend: str, worlds: Worlds) -> None:
    """The traps: labels by rank and batch size, and a mean over own rows, which nothing complains about."""
    assert right in LOOP
    expected, found = (
        worlds.get(backend, 2).run(weights_by_readme, loop, [(3, 2)])[0] for loop in (LOOP, LOOP.replace(right, wrong))
    )
    apart = max(((f - e).norm() / e.norm()).item() for f, e in zip(found, expected, strict=True))
    assert apart > 1e-3
