# SPDX-License-Identifier: MIT
"""A rank dies, stops or goes another way: every other rank ends in an error of ours, and none hangs or aborts.

The worlds' own deadlines are the proof that nothing hangs: a rank that has not answered by then, or that died without
being told to, fails the test.
"""

import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.support import Deadlines, World
from tests.support.hosts import address
from tests.support.oracle import values
from tests.support.world import place

# ------------------------------------------------------------------ on ranks

gloo = importlib.import_module("shared_distributed._gloo")

LARGE = (1 << 20, 4)  # 16 MiB a rank: point to point, and long enough to be in the middle of


class Seen(NamedTuple):
    """What a call ended in on one rank, and after how many seconds."""

    error: str
    message: str
    seconds: float


def observe(call: Callable[[], Any]) -> Seen:
    started = time.monotonic()
    try:
        call()
    except Exception as error:  # any error is a result here
        return Seen(type(error).__name__, str(error), time.monotonic() - started)
    return Seen("", "", time.monotonic() - started)


def lost_at(stage: str, victim: int, how: str) -> Seen:
    """A gather, and for stage "backward" its summed backward, in which one rank gets a signal."""
    rank = dist.get_rank()
    width = 40000 if stage == "between" else 3  # too wide to come with the header
    x = torch.full(LARGE, float(rank)) if stage == "data" else values(rank, (rank + 1, width), "float32")
    x.requires_grad_()
    dist.barrier()  # every rank is ready, and every pair connected, before anything happens
    if rank == victim:
        _arm(stage, getattr(signal, how))

    def call() -> None:
        gathered, _ = core.all_gather(x)
        (gathered * (rank + 1)).sum().backward()

    return observe(call)


def _arm(stage: str, number: int) -> None:
    """Let this process get a signal at a stage of its next gather."""

    def strike(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), number)

    if stage == "exchange":
        gloo.Gloo.exchange = strike
    elif stage == "backward":
        gloo.Gloo.sum = strike
    else:  # before its first send: later, a rank may have all that it needs of this one
        gloo.Gloo.send_rows = strike


def lost_store(timeout: float, how: str) -> Seen:
    """Rank 0 holds the TCP store, and gets a signal: there is nobody left to ask."""
    where = place()
    note = Path(where.folder) / "port"
    if where.rank == 0:
        store = dist.TCPStore(address(), 0, where.size, is_master=True, wait_for_workers=False)
        (note.with_suffix(".new")).write_text(f"{address()} {store.port}")
        note.with_suffix(".new").replace(note)
    else:
        for _ in range(600):
            if note.exists():
                break
            time.sleep(0.05)
        host, port = note.read_text().split()
        store = dist.TCPStore(host, int(port), where.size)
    patience = timedelta(seconds=timeout)
    dist.init_process_group("gloo", store=store, rank=where.rank, world_size=where.size, timeout=patience)
    dist.barrier()
    if where.rank == 0:
        os.kill(os.getpid(), getattr(signal, how))
    return observe(lambda: core.all_gather(torch.ones(where.rank, 2)))


def raises_between(goes_on: bool) -> Seen:
    """Rank 1 fails in its own code before the summed backward; it stops there, or goes on with the next batch."""
    rank = dist.get_rank()
    dist.barrier()
    x = values(rank, (rank + 1, 3), "float32").requires_grad_()

    def call() -> None:
        gathered, _ = core.all_gather(x)
        if rank != 1:
            (gathered * (rank + 1)).sum().backward()
        elif goes_on:
            core.all_gather(x)
        else:
            raise ZeroDivisionError("the user's own")

    return observe(call)


def failing_twice() -> Seen:
    """Ranks 0 and 1 fail in a group that rank 2 stays away from, and go on; then rank 1 is killed in a call of all."""
    rank = dist.get_rank()
    three = dist.new_group([0, 1, 2], timeout=timedelta(seconds=2))
    dist.barrier()
    first = observe(lambda: core.all_gather(torch.ones(rank, 2), group=three)) if rank < 2 else Seen("", "", 0.0)
    time.sleep(max(0.0, 7.0 - first.seconds))  # all go on together
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return observe(lambda: core.all_gather(torch.ones(rank, 2)))


def out_of_order(kind: str) -> Seen:
    """Rank 0 does first what the others do second."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    x = values(rank, (2, 3), "float32")
    sizes = [2] * world

    def scatter() -> Tensor:
        return core.reduce_scatter(torch.ones(2 * world, 3), sizes=sizes, check=False)

    calls: list[Callable[[], Any]] = {
        "two gathers": [lambda: core.all_gather(x), lambda: core.all_gather(x.double())],
        "with a scatter": [lambda: core.all_gather(x), scatter],
        "with an all-reduce": [lambda: core.all_gather(x), lambda: dist.all_reduce(torch.ones(1000))],
    }[kind]

    def call() -> None:
        for one in calls if rank == 0 else reversed(calls):
            one()

    return observe(call)


def two_groups() -> Seen:
    """Two groups of two; in each, one rank never comes: the second of the first one, the first of the second."""
    rank = dist.get_rank()
    patience = timedelta(seconds=place().timeout)  # a new group has its own, of half an hour
    groups = [dist.new_group(members, timeout=patience) for members in ([0, 1], [2, 3])]
    dist.barrier()
    if rank in (1, 2):
        time.sleep(1)
        return Seen("", "", 0.0)
    return observe(lambda: core.all_gather(torch.ones(rank + 1), group=groups[rank // 2]))


# ------------------------------------------------------------------ tests

TIMEOUT = 5.0  # long enough for a busy machine to get to the stage that is meant
# the group's timeout, 5 seconds for the store at most, and room for a busy machine
DEADLINES = Deadlines(collective=TIMEOUT, case=TIMEOUT + 20)
OPERATION = {
    "exchange": "exchange of sizes",
    "between": "gather of torch.float32 ((1, 2, 3, 4), 40000) along dim 0",
    "data": "gather of torch.float32 ((1048576, 1048576, 1048576, 1048576), 4) along dim 0",
    "backward": "sum over ranks of torch.float32 ((1, 2, 3, 4), 3) along dim 0",
}


class Scenario(NamedTuple):
    """What runs on the ranks of a world of its own, and which of them will give no answer."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    lost: tuple[int, ...] = ()
    size: int = 3
    join: bool = True


SIGNALS = ("SIGKILL", "SIGSTOP")
LOST_RANKS = {
    f"{stage}-{how}-rank {victim}": Scenario(lost_at, (stage, victim, how), (victim,), 4)
    for stage in OPERATION
    for how in SIGNALS
    for victim in (0, 2)
}
SCENARIOS = {
    **LOST_RANKS,
    **{f"store-{how}": Scenario(lost_store, (TIMEOUT, how), (0,), join=False) for how in SIGNALS},
    "raises": Scenario(raises_between, (False,)),
    "goes on": Scenario(raises_between, (True,)),
    "failing twice": Scenario(failing_twice, (), (1,), 4),
    "two groups": Scenario(two_groups, (), size=4),
    **{kind: Scenario(out_of_order, (kind,)) for kind in ("two gathers", "with a scatter", "with an all-reduce")},
}


@pytest.fixture(scope="module")
def answers() -> Iterator[Callable[[str], list[Any]]]:
    """What every rank answered in a scenario. Several worlds at a time: most of it is waiting."""

    def play(scenario: Scenario) -> list[Any]:
        with World(scenario.size, join=scenario.join, deadlines=DEADLINES) as ranks:
            return ranks.try_run(scenario.function, *scenario.args, lost=scenario.lost)

    with ThreadPoolExecutor(6) as pool:
        played = {name: pool.submit(play, scenario) for name, scenario in SCENARIOS.items()}
        yield lambda name: played[name].result()


@pytest.mark.parametrize("name", LOST_RANKS)
def test_a_lost_rank_is_named_by_every_other(name: str, answers: Callable[[str], list[Any]]) -> None:
    """Killed or stopped at any stage: the operation, the ranks that have not reported, and what to do now."""
    stage, victim, _ = LOST_RANKS[name].args
    survivors = {rank: seen for rank, seen in enumerate(answers(name)) if rank != victim}
    for rank, seen in survivors.items():
        assert seen.error == "TransportError", seen
        assert seen.message.startswith(f"{OPERATION[stage]} failed on rank {rank} of 4: ")
        (silent,) = [line for line in seen.message.splitlines() if line.startswith("No report from ranks")]
        assert str(victim) in silent.partition(" within ")[0], silent
        assert "The process group cannot be used any more" in seen.message
    last = max(survivors.values(), key=lambda seen: seen.seconds)
    assert f"No report from ranks [{victim}] within" in last.message, "the last to fail has heard all others"


def test_a_report_belongs_to_one_failure(answers: Callable[[str], list[Any]]) -> None:
    """A rank that reported an earlier failure, in another group, and then died, is not taken for alive."""
    for rank, seen in enumerate(answers("failing twice")):
        if rank != 1:
            assert seen.error == "TransportError", seen
            assert "rank 1 failed in" not in seen.message


@pytest.mark.parametrize("how", SIGNALS)
def test_a_lost_store_is_said(how: str, answers: Callable[[str], list[Any]]) -> None:
    """Where the rank that holds the store is the one lost, nobody can be asked, and the error says that."""
    for rank, seen in enumerate(answers(f"store-{how}")):
        if rank != 0:
            assert seen.error == "TransportError", seen
            assert seen.message.startswith(f"exchange of sizes failed on rank {rank} of 3")
            assert "The other ranks could not be asked: the store" in seen.message


def test_a_rank_that_fails_before_its_backward_is_named(answers: Callable[[str], list[Any]]) -> None:
    """User code raises on one rank between forward and backward: the others say who is missing."""
    seen = answers("raises")
    assert seen[1].error == "ZeroDivisionError"
    for rank in (0, 2):
        assert seen[rank].error == "TransportError", seen[rank]
        assert seen[rank].message.startswith("sum over ranks of torch.float32 ((1, 2, 3), 3) along dim 0 failed")
        assert "No report from ranks [1]" in seen[rank].message
        assert f"rank {2 - rank} failed in: sum over ranks" in seen[rank].message


def test_a_rank_that_skips_its_backward_is_told_what_the_others_are_in(answers: Callable[[str], list[Any]]) -> None:
    """It catches its own error and goes on with the next batch, while the others are in the backward."""
    seen = answers("goes on")
    assert [one.error for one in seen] == ["TransportError"] * 3, seen
    for rank in (0, 2):
        assert "rank 1 failed in: exchange of sizes" in seen[rank].message
        assert f"rank {rank} failed in: sum over ranks of torch.float32" in seen[1].message


def test_gathers_in_another_order_are_told_apart_at_once(answers: Callable[[str], list[Any]]) -> None:
    """Where sizes are not given the headers show it."""
    seen = answers("two gathers")
    assert [one.error for one in seen] == ["DisagreementError"] * 3, seen
    assert all("float64" in one.message and "float32" in one.message for one in seen)


def test_operations_in_another_order_are_told_apart_at_the_timeout(answers: Callable[[str], list[Any]]) -> None:
    """Each rank says which operation it was in, and which the others were in."""
    seen = answers("with a scatter")
    first, second = OPERATION["exchange"], "sum over ranks of torch.float32 ((2, 2, 2), 3) along dim 0"
    assert [one.error for one in seen] == ["TransportError"] * 3, seen
    assert seen[0].message.startswith(f"{first} failed on rank 0 of 3")
    for rank in (1, 2):
        assert seen[rank].message.startswith(f"{second} failed on rank {rank} of 3")
        assert f"rank 0 failed in: {first}" in seen[rank].message
        assert f"rank {rank} failed in: {second}" in seen[0].message


def test_ranks_in_somebody_elses_collective_are_missed(answers: Callable[[str], list[Any]]) -> None:
    """They report nothing: those in ours say so."""
    seen = answers("with an all-reduce")
    assert [one.error for one in seen] == ["TransportError", "RuntimeError", "RuntimeError"], seen
    assert "No report from ranks [1, 2]" in seen[0].message


def test_a_report_is_heard_in_its_own_group_only(answers: Callable[[str], list[Any]]) -> None:
    """Ranks are those within the group; what fails in another group, under the same rank there, is no report."""
    first, absent, missing, last = answers("two groups")
    assert [absent.error, missing.error] == ["", ""]
    for seen, rank in ((first, 0), (last, 1)):
        assert seen.error == "TransportError", seen
        assert seen.message.startswith(f"exchange of sizes failed on rank {rank} of 2")
        assert f"No report from ranks [{1 - rank}]" in seen.message
        assert "failed in:" not in seen.message
