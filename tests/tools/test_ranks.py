# SPDX-License-Identifier: MIT
"""The ranks: they must fail well before anything that runs on them can be trusted."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from shared_distributed_tools.ranks import CRASHED, HUNG, Deadlines, RankError, World, WorldFailure
from shared_distributed_tools.ranks.oracle import upstream, values
from shared_distributed_tools.ranks.rank import Place, join_group, place

SHORT = Deadlines(collective=2.0, case=3.0, kill=4.0, after_error=1.0)
_seen: Counter[str] = Counter()


# ------------------------------------------------------------------ on ranks


def whoami() -> tuple[int, int, int]:
    return place().rank, place().size, os.getpid()


def total() -> float:
    x = torch.tensor(float(place().rank + 1))
    dist.all_reduce(x)
    return x.item()


def remember(word: str) -> int:
    _seen[word] += 1
    return _seen[word]


def fail_on(rank: int) -> str:
    if place().rank == rank:
        msg = f"rank {rank} was told to fail"
        raise LookupError(msg)
    return "fine"


def sleep_on(rank: int, seconds: float) -> str:
    if place().rank == rank:
        a_telling_name_for_the_stack(seconds)
    return "awake"


def a_telling_name_for_the_stack(seconds: float) -> None:
    time.sleep(seconds)


def enter_collective_unless(rank: int) -> None:
    if place().rank != rank:
        dist.barrier()


def kill_on(rank: int) -> None:
    if place().rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)


def abort_on(rank: int) -> None:
    if place().rank == rank:
        os.abort()


def leave_on(rank: int) -> None:
    if place().rank == rank:
        os._exit(3)


def remember_place(where: Place) -> None:
    _seen[where.backend] += 5


# ------------------------------------------------------------------ the parent


@pytest.fixture
def world() -> Iterator[World]:
    with World(3, deadlines=SHORT) as world:
        yield world


def test_results_come_back_by_rank(world: World) -> None:
    """One result a rank, in rank order, from as many different processes in one process group."""
    answers = world.run(whoami)
    assert [(rank, size) for rank, size, _ in answers] == [(0, 3), (1, 3), (2, 3)]
    assert len({pid for *_, pid in answers}) == 3
    assert world.run(total) == [6.0, 6.0, 6.0]


def test_ranks_persist(world: World) -> None:
    """The same process serves the same rank from case to case, and keeps what it was told."""
    assert world.run(whoami) == world.run(whoami)
    assert world.run(remember, "a") == [1, 1, 1]
    assert world.run(remember, "a") == [2, 2, 2]


def test_every_failing_ranks_traceback_is_shown(world: World) -> None:
    """A failure names the rank and shows where it was raised; the next case gets new ranks."""
    before = world.run(whoami)
    with pytest.raises(WorldFailure, match=r"fail_on failed on ranks \[1\] of 3") as failure:
        world.run(fail_on, 1)
    assert "LookupError: rank 1 was told to fail" in str(failure.value)
    assert "in fail_on" in failure.value.by_rank[1]
    assert {pid for *_, pid in before}.isdisjoint({pid for *_, pid in world.run(whoami)})


def test_errors_can_be_had_as_data(world: World) -> None:
    """`try_run` hands a rank's error over and keeps the world."""
    before = world.run(whoami)
    answers = world.try_run(fail_on, 2)
    assert answers[:2] == ["fine", "fine"]
    assert isinstance(answers[2], RankError)
    assert answers[2].type == "LookupError"
    assert world.run(whoami) == before


def test_a_hang_ends_in_stacks_and_the_next_case_runs(world: World) -> None:
    """Past the case deadline the stuck rank's stack is shown, the world is killed, and a new one serves."""
    with pytest.raises(WorldFailure, match=r"no answer from ranks \[2\] of 3") as failure:
        world.run(sleep_on, 2, 60)
    assert "a_telling_name_for_the_stack" in failure.value.by_rank[2]
    assert (failure.value.end, failure.value.answers) == (HUNG, {0: "awake", 1: "awake"})
    assert world.run(total) == [6.0, 6.0, 6.0]


def test_the_others_need_not_be_waited_for_long() -> None:
    """With `after_first`, a rank that is late by so much has hung, long before the case's own deadline."""
    started = time.monotonic()
    with World(2, deadlines=Deadlines(after_first=1.0, case=60, kill=60)) as world:
        world.run(whoami)
        with pytest.raises(WorldFailure, match=r"no answer from ranks \[1\] of 2"):
            world.run(sleep_on, 1, 50)
    assert time.monotonic() - started < 40


def test_the_collective_deadline_comes_first(world: World) -> None:
    """Ranks left alone in a collective raise by themselves, before the world is ended."""
    with pytest.raises(WorldFailure, match=r"failed on ranks \[0, 2\] of 3") as failure:
        world.run(enter_collective_unless, 1)
    assert "RuntimeError" in failure.value.by_rank[0]


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [(kill_on, -9, "was killed by SIGKILL"), (abort_on, -6, CRASHED), (leave_on, 3, "left with exit code 3")],
)
def test_a_dead_rank_is_noticed_at_once(end: Callable[[int], None], code: int, words: str) -> None:
    """It is reported by its rank and exit code, and in words, long before any deadline."""
    with World(2) as world:
        world.run(whoami)
        started = time.monotonic()
        with pytest.raises(WorldFailure, match=rf"worker died on ranks \{{1: {code}\}} of 2") as failure:
            world.run(end, 1)
        assert failure.value.end == words
        assert time.monotonic() - started < world.deadlines.collective / 2
        assert world.run(total) == [3.0, 3.0]


def test_ranks_that_are_to_be_lost_are_not_waited_for() -> None:
    """A test of what the others do then."""
    with World(2) as world:
        world.run(whoami)
        assert world.try_run(kill_on, 1, lost=[1]) == [None, None]


def test_a_fresh_world_has_no_process_group_yet() -> None:
    """The case joins when it likes, in processes that nobody used before."""
    with World(2, join=False) as world:
        assert world.run(dist.is_initialized) == [False, False]
        assert world.run(remember, "fresh") == [1, 1]
        world.run(join_group)
        assert world.run(total) == [3.0, 3.0]


def test_ranks_can_be_prepared() -> None:
    """Before anything else, with their place."""
    with World(2, prepare=remember_place) as world:
        assert world.run(remember, "gloo") == [6, 6]


def test_tensors_of_any_dtype_come_back() -> None:
    """With their values and shapes."""
    with World(1, join=False) as world:
        for dtype in ("float32", "bool", "complex64", "float8_e4m3fn"):
            (back,) = world.run(values, 3, (2, 3), dtype)
            assert back.tolist() == values(3, (2, 3), dtype).tolist()
            assert str(back.dtype) == f"torch.{dtype}"


def test_closing_a_world_ends_its_processes() -> None:
    """Nothing is left running."""
    world = World(2)
    world.run(whoami)
    processes = list(world.processes)
    world.close()
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.parametrize("numbers", [values, upstream])
def test_no_two_ranks_and_no_two_neighbours_have_the_same_number(numbers: Callable[..., torch.Tensor]) -> None:
    """Or a wrong order, slice or scale would not show."""
    ranks = torch.stack([numbers(rank, (6, 4), "float32") for rank in range(3)])
    for dim in range(3):
        assert (ranks.diff(dim=dim) != 0).all()
