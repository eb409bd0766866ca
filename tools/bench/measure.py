# SPDX-License-Identifier: MIT
"""One point, on one rank: right answers first, then interleaved timing. Every rank runs the same steps.

In a round each contender makes one call, in an order that all ranks share and that changes from round to round. All
ranks pass a barrier before each call, and the call counts as long as the slowest rank took. Contenders are compared
within a round, so that what disturbs a round disturbs all of them. Rounds go on until every ratio's interval is narrow,
or the time is up.
"""

import gc
import os
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed

from .contenders import CONTENDERS, Function, Task
from .estimate import FEWEST, Estimate, estimate
from .grid import Point

NARROW = 1.08  # the width of an interval that needs no more rounds
MOST = 150  # rounds of one visit

Rounds = dict[str, list[float]]  # by contender: the milliseconds of each round


def pin(place: Any) -> None:
    """A core for each rank, where there are enough; for threads that the rank starts later too."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) >= place.size:
        os.sched_setaffinity(0, {cores[place.rank]})


def measure(point: Point, seconds: float) -> Rounds:
    """Check every contender that takes part, then time all of them. Collective."""
    calls = checked_calls(point)
    end, spent = time.monotonic() + seconds, torch.empty(0, len(calls), dtype=torch.float64, device=_device())
    gc.collect()
    gc.disable()  # it would fall on one contender, and be another's garbage
    try:
        while True:
            batch = [[0.0] * len(calls) for _ in range(max(FEWEST, len(spent) // 4))]
            for number, row in enumerate(batch, len(spent)):
                for which in turns(len(calls), number):
                    row[which] = _timed(calls[which][1])
            slowest = torch.tensor(batch, dtype=torch.float64, device=_device())
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            spent = torch.cat([spent, slowest])
            rounds = {name: times for (name, _), times in zip(calls, (1e3 * spent.T).tolist(), strict=True)}
            # one rank's clock decides for all
            is_done = torch.tensor(time.monotonic() >= end or len(spent) >= MOST or is_narrow(rounds), device=_device())
            dist.broadcast(is_done, 0)
            if is_done:
                return rounds
    finally:
        gc.enable()


def ratios(rounds: Rounds) -> dict[str, Estimate]:
    """How many times as long as ours each contender takes, call for call."""
    return {
        one.name: estimate([theirs / ours for theirs, ours in zip(rounds[one.name], rounds[one.against], strict=True)])
        for one in CONTENDERS
        if one.name != one.against and {one.name, one.against} <= rounds.keys()
    }


def is_narrow(rounds: Rounds) -> bool:
    """Whether more rounds would tell little."""
    return all(ratio.width <= NARROW for ratio in ratios(rounds).values())


def turns(contenders: int, number: int) -> list[int]:
    """The order of one round: shuffled, but the same on every rank."""
    return Random(number).sample(range(contenders), contenders)


def checked_calls(point: Point) -> list[tuple[str, Callable[[], Tensor]]]:
    """Every contender's call, made twice: it gives the right answer, and has set up whatever it keeps."""
    task = task_at(point)
    calls = [(one.name, call_of(one.function(task), task)) for one in CONTENDERS if one.takes_part(point)]
    for name, call in calls * 2:
        if not torch.equal(call(), task.right):
            msg = f"{name} gives a wrong answer at {point} on rank {dist.get_rank()}"
            raise AssertionError(msg)
    return calls


def task_at(point: Point) -> Task:
    """Values and upstream gradients that depend on rank and position."""
    rank, sizes = dist.get_rank(), point.sizes

    def values(rows: int, period: int, factor: int) -> Tensor:
        shape = point.shape(rows)
        whole = torch.arange(torch.Size(shape).numel(), dtype=torch.int32, device=_device())
        return (whole % period + 1).mul_(factor).to(torch.float32).view(shape)

    parts = [values(rows, 1009, source + 1) for source, rows in enumerate(sizes)]
    common = values(sum(sizes), 31, 1)  # rank r's upstream gradient is r + 1 times this
    summed = torch.split(common, list(sizes), point.dim)[rank] * sum(range(point.world + 1))
    right = summed if point.direction in ("backward", "both") else torch.cat(parts, point.dim)
    return Task(point, parts[rank], common * (rank + 1), right)


def call_of(function: Function, task: Task) -> Callable[[], Tensor]:
    """One call, as it is timed."""
    if task.point.direction != "both":
        return partial(function, task.gradient if task.point.direction == "backward" else task.x)
    x = task.x.clone().requires_grad_()
    return lambda: torch.autograd.grad(function(x), x, task.gradient)[0]


def _timed(call: Callable[[], Tensor]) -> float:
    dist.barrier()
    _synchronise()
    start = time.perf_counter()
    kept = call()
    _synchronise()
    spent = time.perf_counter() - start
    del kept  # freed outside of the time, as a user's next step would
    return spent


def _device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")  # a rank's own: set when it joined


def _synchronise() -> None:
    if _device().type == "cuda":
        torch.cuda.synchronize()


def python_alone(blocks: int = 60, calls: int = 100) -> dict[str, Estimate]:
    """Milliseconds of CPU time a call over a process group that moves nothing. Run outside of any group."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    x = torch.ones(3, 16, requires_grad=True)
    found = {}
    for name, sizes in (("sizes known", (3, 3, 3, 3)), ("sizes not known", None)):
        spent = []
        for _ in range(blocks):
            start = time.process_time()
            for _ in range(calls):
                shared_distributed.all_gather(x, sizes=sizes)
            spent.append((time.process_time() - start) / calls * 1e3)
        found[name] = estimate(spent)
    dist.destroy_process_group()
    return found
