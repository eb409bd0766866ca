# SPDX-License-Identifier: MIT
"""The ranks: they must fail well before anything that runs on them can be trusted."""

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import pytest
import torch
import torch.distributed as dist

from shared_distributed_tools.ranks import CRASHED, HUNG, Deadlines, RankError, World, WorldFailure
from shared_distributed_tools.ranks.oracle import covering, upstream, values
from shared_distributed_tools.ranks.rank import join_group, place

SHORT = Deadlines(collective=2.0, case=4.0, after_error=1.0)
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


def only_on(rank: int, action: Callable[..., object], *arguments: object) -> str:
    if place().rank == rank:
        action(*arguments)
    return "done"


# ------------------------------------------------------------------ the parent


@pytest.fixture
def world() -> Iterator[World]:
    with World(3, deadlines=SHORT) as world:
        yield world


def test_results_come_back_by_rank_and_ranks_persist(world: World) -> None:
    """One result a rank, in rank order, from as many processes in one group; each serves its rank for good."""
    answers = world.run(whoami)
    assert [(rank, size) for rank, size, _ in answers] == [(0, 3), (1, 3), (2, 3)]
    assert len({pid for *_, pid in answers}) == 3
    assert world.run(total) == [6.0, 6.0, 6.0]
    assert [world.run(remember, "a"), world.run(remember, "a")] == [[1, 1, 1], [2, 2, 2]]
    assert world.run(whoami) == answers


def test_a_failing_ranks_traceback_is_shown(world: World) -> None:
    """It names the rank and shows where it was raised; the next case gets new ranks. `try_run` keeps them."""
    before = world.run(whoami)
    *fine, error = world.try_run(only_on, 2, int, "seven")
    assert fine == ["done", "done"]
    assert isinstance(error, RankError)
    assert (error.type, error.message) == ("ValueError", "invalid literal for int() with base 10: 'seven'")
    assert world.run(whoami) == before
    with pytest.raises(WorldFailure, match=r"only_on failed on ranks \[1\] of 3") as failure:
        world.run(only_on, 1, int, "seven")
    assert "ValueError: invalid literal" in str(failure.value)
    assert "in only_on" in failure.value.by_rank[1]
    assert {pid for *_, pid in before}.isdisjoint({pid for *_, pid in world.run(whoami)})


@pytest.mark.parametrize("deadlines", [SHORT, Deadlines(after_first=1.0)])
def test_a_hang_ends_in_stacks_and_the_next_case_runs(deadlines: Deadlines) -> None:
    """Past a deadline the stuck rank's stack is shown, the world is killed, and a new one serves.

    With `after_first`, a rank that is late by so much has hung, long before the case's own deadline.
    """
    with World(3, deadlines=deadlines) as world:
        world.run(whoami)
        started = time.monotonic()
        with pytest.raises(WorldFailure, match=r"no answer from ranks \[2\] of 3") as failure:
            world.run(only_on, 2, time.sleep, 60)
        assert time.monotonic() - started < 40
        assert "in only_on" in failure.value.by_rank[2]
        assert (failure.value.end, failure.value.answers) == (HUNG, {0: "done", 1: "done"})
        assert world.run(total) == [6.0, 6.0, 6.0]


def test_the_collective_deadline_comes_first(world: World) -> None:
    """A rank left alone in a collective raises by itself, before the world is ended."""
    with pytest.raises(WorldFailure, match=r"failed on ranks \[0\] of 3") as failure:
        world.run(only_on, 0, dist.barrier)
    assert "RuntimeError" in failure.value.by_rank[0]


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ((signal.raise_signal, signal.SIGKILL), -9, "was killed by SIGKILL"),
        ((os.abort,), -6, CRASHED),
        ((os._exit, 3), 3, "left with exit code 3"),
    ],
)
def test_a_dead_rank_is_noticed_at_once(end: tuple[Callable[..., object], ...], code: int, words: str) -> None:
    """It is reported by its rank and exit code, and in words, long before any deadline; unless it was to be lost."""
    with World(2) as world:
        world.run(whoami)
        started = time.monotonic()
        with pytest.raises(WorldFailure, match=rf"worker died on ranks \{{1: {code}\}} of 2") as failure:
            world.run(only_on, 1, *end)
        assert failure.value.end == words
        assert time.monotonic() - started < world.deadlines.collective / 2
        assert world.run(total) == [3.0, 3.0]
        assert world.try_run(only_on, 1, *end, lost=[1]) == ["done", None]


def test_a_world_may_join_later_and_be_prepared() -> None:
    """The case joins when it likes, in processes that nobody used before; `prepare` runs first."""
    with World(2, join=False, prepare=partial(remember, "a")) as world:
        assert world.run(dist.is_initialized) == [False, False]
        assert world.run(remember, "a") == [2, 2]
        world.run(join_group)
        assert world.run(total) == [3.0, 3.0]
        processes = list(world.processes)
    assert not any(process.is_alive() for process in processes)


def test_tensors_of_any_dtype_come_back() -> None:
    """With their values and shapes, detached."""
    with World(1, join=False) as world:
        for dtype in ("float32", "bool", "complex64", "float8_e4m3fn"):
            (back,) = world.run(values, 3, (2, 3), dtype)
            assert back.tolist() == values(3, (2, 3), dtype).tolist()
            assert str(back.dtype) == f"torch.{dtype}"
        assert not world.run(torch.nn.Parameter, back.float())[0].requires_grad


@pytest.mark.parametrize("numbers", [values, upstream])
def test_no_two_ranks_and_no_two_neighbours_have_the_same_number(numbers: Callable[..., torch.Tensor]) -> None:
    """Or a wrong order, slice or scale would not show."""
    ranks = torch.stack([numbers(rank, (6, 4), "float32") for rank in range(3)])
    for dim in range(3):
        assert (ranks.diff(dim=dim) != 0).all()


@pytest.mark.parametrize(("together", "most"), [(2, 45), (3, 140)])
def test_any_two_or_three_options_meet(together: int, most: int) -> None:
    """In far fewer choices than the full product of 400; others with another seed, and any seed will do."""
    axes = [range(4), range(5), range(5), range(2), range(2)]
    assert covering(axes, together) == covering(axes, together) != covering(axes, together, "another")
    for seed in (0, "another"):
        chosen = covering(axes, together, seed)
        assert len(chosen) < most
        for at in combinations(range(len(axes)), together):
            wanted = math.prod(len(axes[i]) for i in at)
            assert len({tuple(choice[i] for i in at) for choice in chosen}) == wanted
