# SPDX-License-Identifier: MIT
"""Contrastive training with ragged batches: the same loss curve as one process that sees every row.

    torchrun --standalone --nproc-per-node 3 contrastive.py

Every rank draws a different number of pairs at every step, sometimes none. Each pair is to be told apart from all
pairs of all ranks, so the embeddings are gathered, and gradients flow back to the ranks that made them. With GPUs for
all ranks it runs on CUDA and NCCL, else on the CPU and gloo.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from shared_distributed import all_gather

LATENT, VIEW, EMBEDDING = 8, 32, 16
TEMPERATURE = 0.1


class TwoTowers(nn.Module):
    """Embeds the two views of a thing: (rows, VIEW), (rows, VIEW) -> (rows, EMBEDDING) each, of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(VIEW, 64), nn.GELU(), nn.Linear(64, EMBEDDING)) for _ in range(2)
        )

    def forward(self, left: Tensor, right: Tensor) -> list[Tensor]:
        """One embedding a row and view."""
        views = zip(self.towers, (left, right), strict=True)
        return [functional.normalize(tower(view), dim=-1) for tower, view in views]


def pairs(step: int, ranks: int) -> tuple[Tensor, Tensor, list[int]]:
    """The two views of every pair of a step, and how many of them each rank has."""
    random = torch.Generator().manual_seed(step)
    sizes = torch.randint(0, 33, (ranks,), generator=random).tolist()
    sizes[step % ranks] += 2  # never no pair at all
    projections = torch.randn(2, LATENT, VIEW, generator=torch.Generator().manual_seed(-1))
    latent = torch.randn(sum(sizes), LATENT, generator=random)
    noise = 0.3 * torch.randn(2, sum(sizes), VIEW, generator=random)
    left, right = torch.tanh(latent @ projections) + noise
    return left, right, sizes


def contrast(left: Tensor, right: Tensor, all_left: Tensor, all_right: Tensor, first: int) -> Tensor:
    """The summed loss of these rows: each finds its partner, row `first + i`, among all rows, in both directions."""
    partner = torch.arange(len(left), device=left.device) + first
    forward = functional.cross_entropy(left @ all_right.T / TEMPERATURE, partner, reduction="sum")
    backward = functional.cross_entropy(right @ all_left.T / TEMPERATURE, partner, reduction="sum")
    return (forward + backward) / 2


def train_alone(steps: int, ranks: int, device: torch.device) -> list[float]:
    """The reference: one process that sees every row."""
    torch.manual_seed(0)
    model = TwoTowers().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for step in range(steps):
        left, right, _ = pairs(step, ranks)
        a, b = model(left.to(device), right.to(device))
        loss = contrast(a, b, a, b, 0) / len(a)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_together(steps: int, device: torch.device) -> list[float]:
    """Every rank its own rows; the loss of each step over all ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoTowers().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for step in range(steps):
        left, right, rows = pairs(step, world)
        mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))  # no rank is told how many rows the others have
        a, b = model(left[mine].to(device), right[mine].to(device))
        (all_a, all_b), sizes = all_gather((a, b))
        loss = contrast(a, b, all_a, all_b, sizes.start)
        optimizer.zero_grad()
        (loss * sizes.ddp_scale).backward()  # the mean over the rows of all ranks, whatever each rank has
        optimizer.step()
        total = loss.detach() / sizes.total
        dist.all_reduce(total)
        losses.append(total.item())
    return losses


def plot(together: list[float], alone: list[float], file: Path) -> None:
    """Both loss curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(alone, color="#9aa7b4", linewidth=5, label="one process, all rows")
    axes.plot(together, color="#c2410c", linewidth=1.5, label="ragged over ranks, all_gather")
    axes.set(xlabel="step", ylabel="contrastive loss")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def main() -> int:
    """Train both ways, compare, plot; exit code 1 if the curves part."""
    parser = argparse.ArgumentParser(description="Contrastive training with ragged batches.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--plot", type=Path, help="draw both loss curves into this file (needs matplotlib)")
    options = parser.parse_args()

    local = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    together = train_together(options.steps, device)
    parted = 0.0
    if dist.get_rank() == 0:
        alone = train_alone(options.steps, dist.get_world_size(), device)
        parted = max(abs(a - b) / abs(b) for a, b in zip(together, alone, strict=True))
        print(f"{dist.get_world_size()} ranks, {device.type}, {dist.get_backend()}: {options.steps} steps")
        print(f"loss, first to last step     together {together[0]:.6f} -> {together[-1]:.6f}")
        print(f"                             alone    {alone[0]:.6f} -> {alone[-1]:.6f}")
        print(f"largest relative difference at any step: {parted:.1e}")
        if options.plot:
            plot(together, alone, options.plot)
            print(f"both curves: {options.plot}")
    dist.barrier()
    dist.destroy_process_group()
    return int(parted > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
