# SPDX-License-Identifier: MIT
"""One point, on one rank: right answers first, then interleaved timing. Every rank runs the same steps.

How a call is timed. All ranks pass a barrier, then each times a block of calls by its own clock, and the
block counts as long as the slowest rank took. A barrier at the end as well would add its own length, which
is that of a small gather; a single call would be dominated by how unevenly the ranks leave the barrier. So
short calls are timed in blocks of several, and contenders take turns, block by block, in another order
in each repetition: a fixed one would give each of them always the same predecessor, whose memory it inherits.
"""

import json
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from .contenders import CONTENDERS, Function, Task
from .grid import MIB, Mode, Point

BLOCK_SECONDS = 0.02  # long against a barrier's unevenness
MOST_CALLS = 20
WARM_UP_BELOW = 0.3  # seconds
MEMORY_AT = 4 * MIB  # peak allocations are taken here: large enough that buffers, not headers, are seen,
MEMORY_UP_TO_WORLD = 4  # and few enough that it does not take minutes
REPETITIONS = (3, 15)  # at least, at most; in between, the budget decides

Call = Callable[[], Tensor]


class Timing(NamedTuple):
    """What one contender did at one point; times in milliseconds a call."""

    contender: str
    median_ms: float
    min_ms: float
    repetitions: int
    peak: float | None  # (input + peak of allocations) / (input + output), of the worst rank


def measure(point: Point, mode: Mode, budget: float) -> list[Timing]:
    """Check, warm up and time every contender that takes part; budget in seconds. Collective."""
    task = task_at(point, mode)
    contenders = [contender for contender in CONTENDERS if contender.takes_part(mode, point)]
    calls = {contender.name: call_of(contender.make(task), task) for contender in contenders}
    first = []
    for name, call in calls.items():
        start = time.perf_counter()
        answer = call()
        first.append([time.perf_counter() - start])
        if not torch.equal(answer, task.right):
            msg = f"{name} gives a wrong answer at {point}, {mode}, on rank {dist.get_rank()}"
            raise AssertionError(msg)
    with_memory = mode == "forward" and point.mean_bytes == MEMORY_AT and point.world <= MEMORY_UP_TO_WORLD
    peaks = {name: _peak(call, task) for name, call in calls.items()} if with_memory else {}
    del answer
    times = _time_interleaved(list(calls.values()), [row[0] for row in _slowest(first)], budget)
    return [
        Timing(name, 1e3 * median(seconds), 1e3 * min(seconds), len(seconds), peaks.get(name))
        for name, seconds in zip(calls, times, strict=True)
    ]


def task_at(point: Point, mode: Mode) -> Task:
    """Values and upstream gradients that depend on rank and position."""
    rank, sizes = dist.get_rank(), point.sizes

    def values(rows: int, period: int, factor: int) -> Tensor:
        shape = point.shape(rows)
        count = torch.Size(shape).numel()
        return (torch.arange(count, dtype=torch.int32) % period + 1).mul_(factor).to(torch.float32).view(shape)

    parts = [values(rows, 1009, source + 1) for source, rows in enumerate(sizes)]
    gathered = torch.cat(parts, point.dim)
    common = values(sum(sizes), 31, 1)  # rank r's upstream gradient is r + 1 times this
    own = torch.split(common, list(sizes), point.dim)[rank]
    gradient = own * (rank + 1 if mode == "local" else sum(range(point.world + 1)))
    right = gathered if mode == "forward" else gradient
    return Task(mode, point.dim, sizes, parts[rank], common * (rank + 1), gathered, right)


def call_of(function: Function, task: Task) -> Call:
    """One call, as it is timed."""
    if task.mode in ("forward", "backward"):
        return lambda: function(task.x if task.mode == "forward" else task.gradient)
    x = task.x.clone().requires_grad_()
    return lambda: torch.autograd.grad(function(x), x, task.gradient)[0]


def plan(seconds_a_call: list[float], budget: float) -> tuple[list[int], int]:
    """Calls in a block for each contender, and how many repetitions fit the budget."""
    calls = [max(1, min(MOST_CALLS, round(BLOCK_SECONDS / max(seconds, 1e-6)))) for seconds in seconds_a_call]
    one_repetition = sum(count * seconds for count, seconds in zip(calls, seconds_a_call, strict=True))
    fewest, most = REPETITIONS
    return calls, max(fewest, min(most, int(budget / max(one_repetition, 1e-6))))


def turns(contenders: int, repetition: int) -> list[int]:
    """The order of one repetition: shuffled, but the same on every rank."""
    return Random(repetition).sample(range(contenders), contenders)


def _time_interleaved(calls: list[Call], first: list[float], budget: float) -> list[list[float]]:
    """Seconds a call: for each contender, one number a repetition. `first`: seconds of each one's first call."""
    # a first call sets things up; where it was long nonetheless, a second one would tell the plan nothing new
    again = [
        [_block(call, 1) if seconds < WARM_UP_BELOW else seconds] for call, seconds in zip(calls, first, strict=True)
    ]
    counts, repetitions = plan([row[0] for row in _slowest(again)], budget)
    spent: list[list[float]] = [[0.0] * repetitions for _ in calls]
    for repetition in range(repetitions):
        for which in turns(len(calls), repetition):
            spent[which][repetition] = _block(calls[which], counts[which])
    return _slowest(spent)


def _block(call: Call, count: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _slowest(seconds: list[list[float]]) -> list[list[float]]:
    """Each entry's maximum over ranks: afterwards all ranks see, and plan by, the same numbers."""
    everyone = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(everyone, dist.ReduceOp.MAX)
    slowest: list[list[float]] = everyone.tolist()
    return slowest


def _peak(call: Call, task: Task) -> float:
    dist.barrier()
    ratio = (task.x.nbytes + peak_bytes(call)) / (task.x.nbytes + task.gathered.nbytes)
    return _slowest([[ratio]])[0][0]


def peak_bytes(call: Callable[[], object]) -> int:
    """The most that torch had allocated at one time during a call, over what there was before it.

    From the profiler: the process's own memory would show the allocator's habits.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = call()  # alive until the profiler stops: a result freed on the way would hide its bytes
    del kept
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    memory = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    deltas: list[int] = [delta for _, delta in sorted(memory, key=lambda event: event[0])]
    return max(accumulate(deltas, initial=0))
