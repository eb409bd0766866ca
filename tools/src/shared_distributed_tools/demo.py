# SPDX-License-Identifier: MIT
"""The main job on one screen: ragged batches through every adapter, compared with one process."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.table import Table
from torch import Tensor

import mirasol_distributed
import musiclm_distributed
import shared_distributed
import spear_tts_distributed
import st_moe_distributed

from . import terminal

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


def in_one_process() -> tuple[Tensor, list[Tensor]]:
    """What every rank should hold, and the gradient of each rank's loss with respect to all rows."""
    whole = torch.cat([batch(rank) for rank in range(len(SIZES))]).requires_grad_()
    gradients = [torch.autograd.grad(loss(rank, whole), whole)[0] for rank in range(len(SIZES))]
    return whole.detach(), gradients


def on_a_rank(rank: int, folder: str) -> None:
    """Gather this rank's rows in every way; leave the largest differences from one process in a file."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), len(SIZES))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(SIZES))
    whole, gradients = in_one_process()
    found = []
    for way in WAYS:
        x = batch(rank).requires_grad_()
        gathered, sizes = way.gather(x)
        (gradient,) = torch.autograd.grad(loss(rank, gathered), x)
        expected = torch.stack(gradients).sum(0) if way.gradient == "sum" else gradients[rank]
        own = expected.split(SIZES)[rank]
        worst = max([0.0, *(gradient - own).abs().flatten().tolist()])
        agreed = tuple(int(n) for n in sizes) == SIZES
        found.append((agreed and torch.equal(gathered, whole), worst))
    torch.save(found, Path(folder) / f"rank-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def show() -> bool:
    """Gather on four gloo ranks, and show what came of it; whether all of it is right."""
    console = terminal.console()
    rows = ", ".join(map(str, SIZES))
    console.print(f"{len(SIZES)} processes on gloo hold {rows} rows of {COLUMNS} columns; each gathers all rows.\n")
    with tempfile.TemporaryDirectory() as folder:
        with console.status("starting the ranks"):
            mp.start_processes(on_a_rank, (folder,), nprocs=len(SIZES), start_method="spawn")
        by_rank = [torch.load(Path(folder) / f"rank-{rank}.pt") for rank in range(len(SIZES))]

    table = Table("adapter", "call", "values", "gradient", "off by", box=None, pad_edge=False)
    everything = True
    for way, results in zip(WAYS, zip(*by_rank, strict=True), strict=True):
        exact = all(right for right, _ in results)
        worst = max(off for _, off in results)
        close = worst < 1e-4
        everything &= exact and close
        table.add_row(
            way.adapter,
            way.call,
            "[green]exact[/]" if exact else "[red]different[/]",
            f"[green]{way.gradient}[/]" if close else f"[red]{way.gradient}: wrong[/]",
            f"{worst:.1g}",
        )
    console.print(table)
    console.print(
        "\nexact   every rank holds torch.cat of all batches, and knows the right sizes"
        "\nsum     own rows of the gradient of all ranks' losses together: the true one"
        "\nlocal   own rows of the gradient of this rank's loss alone: no communication"
        "\noff by  the largest difference from the same gradient computed in one process"
    )
    return everything
