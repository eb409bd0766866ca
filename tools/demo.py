# SPDX-License-Identifier: MIT
"""`nox -s demo`: the main job on one screen. Ragged batches through the core and four adapters, next to one process."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mirasol_distributed
import musiclm_distributed
import shared_distributed
import spear_tts_distributed
import st_moe_distributed
from shared_distributed_tools.ranks import World, preload
from shared_distributed_tools.ranks.rank import place

SIZES = (3, 0, 4, 1)  # rows on each rank: no two alike, one rank empty
COLUMNS = 5


class Way(NamedTuple):
    """One way to gather: the call as a user writes it, and which gradient it gives."""

    adapter: str
    call: str
    gradient: str  # "sum": own rows of the gradient summed over ranks; "local": of this rank's own
    gather: Callable[[Tensor], tuple[Tensor, Any]]


WAYS = [
    Way("core", "all_gather(x)", "sum", shared_distributed.all_gather),
    Way("core", "all_gather(x, grad='local')", "local", lambda x: shared_distributed.all_gather(x, grad="local")),
    Way("musiclm", "AllGather(dim=0)(x)", "local", lambda x: musiclm_distributed.AllGather(dim=0)(x)),
    Way(
        "musiclm",
        "AllGather(dim=0, all_reduce_grads=True)(x)",
        "sum",
        lambda x: musiclm_distributed.AllGather(dim=0, all_reduce_grads=True)(x),
    ),
    Way("spear-tts", "all_gather(x, 0, None)", "local", lambda x: spear_tts_distributed.all_gather(x, 0, None)),
    Way("mirasol", "all_gather(x, 0, None)", "local", lambda x: mirasol_distributed.all_gather(x, 0, None)),
    Way("st-moe", "AllGather(dim=0)(x)", "local", lambda x: st_moe_distributed.AllGather(dim=0)(x)),
]


def batch(rank: int) -> Tensor:
    """A rank's rows: `(SIZES[rank], COLUMNS)`, different on every rank."""
    return torch.randn(SIZES[rank], COLUMNS, generator=torch.Generator().manual_seed(rank))


def loss(rank: int, gathered: Tensor) -> Tensor:
    """A rank's loss: every row meets every row, weighted by a rule of the rank's own."""
    weight = torch.linspace(-1, 1 + rank, gathered.numel()).view_as(gathered)
    return (gathered @ gathered.T).sum() / 10 + (weight * gathered).sum()


def on_a_rank() -> list[tuple[bool, float]]:
    """For each way: whether the values are right, and the largest difference from the gradient in one process."""
    rank = place().rank
    whole = torch.cat([batch(other) for other in range(len(SIZES))]).requires_grad_()
    gradients = [torch.autograd.grad(loss(other, whole), whole)[0] for other in range(len(SIZES))]
    found = []
    for way in WAYS:
        x = batch(rank).requires_grad_()
        gathered, sizes = way.gather(x)
        (gradient,) = torch.autograd.grad(loss(rank, gathered), x)
        expected = torch.stack(gradients).sum(0) if way.gradient == "sum" else gradients[rank]
        worst = max([0.0, *(gradient - expected.split(SIZES)[rank]).abs().flatten().tolist()])
        found.append((tuple(int(n) for n in sizes) == SIZES and torch.equal(gathered, whole), worst))
    return found


def main() -> int:
    """Gather on four gloo ranks, and show what came of it; 1 if anything is wrong."""
    screen = Console()
    rows = ", ".join(map(str, SIZES))
    screen.print(f"{len(SIZES)} processes on gloo hold {rows} rows of {COLUMNS} columns; each gathers all rows.\n")
    preload("torch.fx.experimental.symbolic_shapes")  # what a first backward imports
    with screen.status("starting the ranks"), World(len(SIZES)) as world:
        by_rank = world.run(on_a_rank)
    table = Table("adapter", "call", "values", "gradient", "off by", box=None, pad_edge=False)
    is_right = True
    for way, results in zip(WAYS, zip(*by_rank, strict=True), strict=True):
        is_exact, worst = all(exact for exact, _ in results), max(off for _, off in results)
        values = "[green]exact[/]" if is_exact else "[red]different[/]"
        gradient = f"[green]{way.gradient}[/]" if worst < 1e-4 else f"[red]{way.gradient}: wrong[/]"
        table.add_row(way.adapter, way.call, values, gradient, f"{worst:.1g}")
        is_right &= is_exact and worst < 1e-4
    screen.print(table)
    screen.print(
        "\nexact   every rank holds torch.cat of all batches, and knows the right sizes"
        "\nsum     own rows of the gradient of all ranks' losses together: the true one"
        "\nlocal   own rows of the gradient of this rank's loss alone: no communication"
        "\noff by  the largest difference from the same gradient computed in one process"
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
