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
from contextlib import suppress
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed
from shared_distributed_tools.ranks.rank import place

from .contenders import CONTENDERS, Contender
from .estimate import FEWEST, Estimate, estimate
from .grid import EXCHANGES, Point

NARROW = 1.08  # the width of an interval that needs no more rounds
MOST = 150  # rounds of one visit

Calls = dict[str, Callable[[], Tensor]]  # by contender
Rounds = dict[str, list[float]]  # by contender: the milliseconds of each round


def pin() -> None:
    """Cores of its own for each rank, where there are two for each: one for its own thread, one for gloo's."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(cores) // place().size
    if each >= 2:
        os.sched_setaffinity(0, cores[place().rank * each :][:each])


def measure(point: Point, seconds: float) -> Rounds:
    """Check every contender that takes part, then time all of them. Collective."""
    calls, end = checked_calls(point), time.monotonic() + seconds
    rounds: Rounds = {name: [] for name in calls}
    gc.collect()
    gc.disable()  # it would fall on one contender, and be another's garbage
    is_done = torch.tensor(False, device=_device())
    while not is_done:
        done = len(next(iter(rounds.values())))
        for name, times in _slowest(calls, range(done, done + max(FEWEST, done // 4))).items():
            rounds[name] += times
        if dist.get_rank() == 0:  # one clock decides for all
            is_done.fill_(time.monotonic() >= end or done >= MOST or is_narrow(rounds))
        dist.broadcast(is_done, 0)
    gc.enable()
    return rounds


def _slowest(calls: Calls, numbers: range) -> Rounds:
    """The milliseconds of some rounds, on the slowest rank."""
    spent = {name: [0.0] * len(numbers) for name in calls}
    for at, number in enumerate(numbers):
        for name in turns(list(calls), number):
            spent[name][at] = _timed(calls[name])
    slowest = 1e3 * torch.tensor(list(spent.values()), dtype=torch.float64, device=_device())
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return dict(zip(calls, slowest.tolist(), strict=True))


def turns(names: list[str], number: int) -> list[str]:
    """The order of one round: shuffled, but the same on every rank."""
    return Random(number).sample(names, len(names))


def _timed(call: Callable[[], Tensor]) -> float:
    dist.barrier()
    _synchronise()
    start = time.perf_counter()
    kept = call()  # freed after the time is taken
    _synchronise()
    spent = time.perf_counter() - start
    del kept
    return spent


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


def checked_calls(point: Point) -> Calls:
    """Every contender's call, made twice: it gives the right answer, and has set up whatever it keeps.

    Values and upstream gradients depend on rank and position; small whole numbers, so that sums are exact.
    """
    rank, sizes, dim = dist.get_rank(), point.sizes, point.dim

    def values(rows: int, period: int) -> Tensor:
        whole = torch.arange(torch.Size(point.shape(rows)).numel(), device=_device())
        return (whole % period + 1).to(torch.float32).view(point.shape(rows))

    def call_of(call: Callable[[Tensor, int, Any], Tensor], given: Any) -> Callable[[], Tensor]:
        if point.direction == "both":
            return lambda: torch.autograd.grad(call(leaf, dim, given), leaf, upstream)[0]
        return lambda: call(upstream if point.direction == "backward" else x, dim, given)

    here = [one for one in CONTENDERS if one.takes_part(point)]
    if point.direction in EXCHANGES:
        return _checked(*_exchanges(point, here), point)
    parts = [values(rows, 1009) * (source + 1) for source, rows in enumerate(sizes)]
    x, leaf = parts[rank], parts[rank].clone().requires_grad_()
    upstream = values(sum(sizes), 31) * (rank + 1)  # so the sum over ranks is 1 + 2 + … times that
    summed = torch.split(values(sum(sizes), 31), list(sizes), dim)[rank] * sum(range(point.world + 1))
    right = summed if point.direction in ("backward", "both") else torch.cat(parts, dim)
    calls = {one.name: call_of(one.call, sizes if one.is_given_sizes else None) for one in here}
    return _checked(calls, right, point)


def _exchanges(point: Point, contenders: list[Contender]) -> tuple[Calls, Any]:
    """Every contender's call where rows go to the ranks that need them, or tensors of any shape to all; the answer."""
    rank = dist.get_rank()
    counts = point.counts
    shapes = point.shapes if point.direction == "each" else [point.shape(sum(sent)) for sent in counts]
    parts = []
    for source, shape in enumerate(shapes):
        whole = torch.arange(torch.Size(shape).numel(), device=_device())
        parts.append((whole % 1009 + 1).to(torch.float32).view(shape) * (source + 1))
    received = [sent[rank] for sent in counts]
    right: Any = parts
    if point.direction != "each":
        right = torch.cat([part.split(sent)[rank] for part, sent in zip(parts, counts, strict=True)])

    def call_of(contender: Contender) -> Callable[[], Any]:
        known = (counts[rank], received if contender.is_given_sizes else None)
        return lambda: contender.call(parts[rank], 0, known)

    return {contender.name: call_of(contender) for contender in contenders}, right


def _checked(calls: Calls, right: Any, point: Point) -> Calls:
    """The same calls, each made twice and found right."""
    for name, call in [*calls.items()] * 2:
        found: Any = call()
        pairs = zip(found, right, strict=True) if isinstance(right, list) else [(found, right)]
        if not all(torch.equal(a, b) for a, b in pairs):
            msg = f"{name} gives a wrong answer at {point} on rank {dist.get_rank()}"
            raise AssertionError(msg)
    return calls


def _device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")  # a rank's own: set when it joined


def _synchronise() -> None:
    if _device().type == "cuda":
        torch.cuda.synchronize()


def python_alone(blocks: int = 60, calls: int = 100) -> dict[str, Estimate]:
    """Milliseconds of CPU time a call, by gloo's transports over a process group that moves nothing.

    Run outside of any group.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from shared_distributed import _choose
    from shared_distributed._call import facts_of
    from shared_distributed._gloo import Buffers, Gloo

    _choose._way_of = lambda device_type, backends: Gloo
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    x, found = torch.ones(3, 16, requires_grad=True), {}
    buffers = facts_of(dist.group.WORLD).buffers = Buffers(0, 4)
    own, *others = buffers.blocks
    for block in others:
        block.zero_()
    with suppress(shared_distributed.GatherError):  # the others have sent nothing
        shared_distributed.all_gather(x)
    for block in others:  # as if they had sent the same
        block.copy_(own)
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
