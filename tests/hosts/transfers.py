# SPDX-License-Identifier: MIT
"""What a rank does and sees where there are several hosts."""

import time
from pathlib import Path

import torch
import torch.distributed as dist

import shared_distributed as core
from tests.support.gather import pad_to_longest
from tests.support.hosts import address
from tests.support.oracle import values


def where() -> tuple[str, str, str]:
    """This rank's address, its network namespace, and the kind of store that it met the others in."""
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return address(), str(Path("/proc/self/ns/net").readlink()), type(store).__name__


def transfer(what: str, sizes: tuple[int, ...], width: int) -> bool:
    """One transfer of float32 rows, with sizes given; whether it gave what it should. All ranks end together."""
    rank, total = dist.get_rank(), sum(sizes)
    rows = [values(r, (n, width), "float32") for r, n in enumerate(sizes)]
    if what == "gather":
        right = torch.equal(core.all_gather(rows[rank], sizes=sizes)[0], torch.cat(rows))
    elif what == "sum":
        summed = core.reduce_scatter(values(rank, (total, width), "float32"), sizes=sizes, check=False)
        everyones = [values(r, (total, width), "float32") for r in range(len(sizes))]
        right = torch.equal(summed, torch.stack(everyones).sum(0).split(sizes)[rank])
    elif what == "pad to longest":
        right = torch.equal(pad_to_longest(rows[rank], 0, sizes), torch.cat(rows))
    else:
        right = what == "nothing"
    dist.barrier()
    return right


def until_it_fails(marker: str, rows: int, seconds: float) -> tuple[str, str, float]:
    """Gather again and again until that raises: the error's type and message, and when it came (the system's clock).

    The marker is written once the gathers are under way.
    """
    rank = dist.get_rank()
    x = torch.ones(rows * (rank + 1), 256, requires_grad=True)
    end = time.monotonic() + seconds
    try:
        for turn in range(1_000_000):
            gathered, _ = core.all_gather(x)
            gathered.sum().backward()
            if turn == 3 and rank == 0:
                Path(marker).touch()
            if time.monotonic() > end:
                return "", "nothing failed", time.time()
    except Exception as error:  # any error is the answer here
        return type(error).__name__, str(error), time.time()
    return "", "nothing failed", time.time()
