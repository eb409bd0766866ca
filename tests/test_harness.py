# SPDX-License-Identifier: MIT
"""The harness itself: it must fail well before its verdicts can be trusted."""

import time
from collections.abc import Iterator

import pytest

from harness import Deadlines, RankError, World, WorldFailure, Worlds
from harness.worker import place


def rank_and_word(word: str) -> tuple[int, str]:
    return place().rank, word


SHORT = Deadlines(collective=2.0, case=3.0, kill=4.0, grace=1.0)


@pytest.fixture
def world() -> Iterator[World]:
    with World("gloo", 3, deadlines=SHORT) as world:
        yield world


def test_results_come_back_by_rank(world: World) -> None:
    """One result a rank, in rank order, from as many different processes."""
    answers = world.run("ranks.basic:whoami")
    assert [(rank, size) for rank, size, _ in answers] == [(0, 3), (1, 3), (2, 3)]
    assert len({pid for _, _, pid in answers}) == 3


def test_a_function_of_the_tests_own_module_runs_on_every_rank(world: World) -> None:
    """It is passed as it is, and the ranks import it by its name."""
    assert world.run(rank_and_word, "a") == [(0, "a"), (1, "a"), (2, "a")]


def test_ranks_are_in_one_process_group(world: World) -> None:
    """A collective reaches all ranks."""
    assert world.run("ranks.basic:total") == [6.0, 6.0, 6.0]


def test_workers_persist_and_stay_pinned_to_their_rank(world: World) -> None:
    """The same process serves the same rank from case to case."""
    assert world.run("ranks.basic:whoami") == world.run("ranks.basic:whoami")
    assert world.run("ranks.basic:remember", "a") == [1, 1, 1]
    assert world.run("ranks.basic:remember", "a") == [2, 2, 2]


def test_every_failing_ranks_traceback_is_shown(world: World) -> None:
    """A failure names the rank and shows where it was raised."""
    with pytest.raises(WorldFailure, match=r"failed on ranks \[1\] of 3") as failure:
        world.run("ranks.basic:fail_on", 1)
    assert "LookupError: rank 1 was told to fail" in str(failure.value)
    assert "in fail_on" in failure.value.by_rank[1]


def test_errors_can_be_had_as_data(world: World) -> None:
    """`try_run` hands a rank's error over and keeps the world."""
    before = world.run("ranks.basic:whoami")
    answers = world.try_run("ranks.basic:fail_on", 2)
    assert answers[:2] == ["fine", "fine"]
    assert isinstance(answers[2], RankError)
    assert answers[2].type == "LookupError"
    assert world.run("ranks.basic:whoami") == before


def test_a_hang_ends_in_stacks_and_the_next_case_runs(world: World) -> None:
    """Past the case deadline the stuck rank's stack is shown, the world is killed, and a new one serves."""
    before = world.run("ranks.basic:whoami")
    with pytest.raises(WorldFailure, match=r"no answer from ranks \[2\] of 3") as failure:
        world.run("ranks.basic:sleep_on", 2, 60)
    assert "a_telling_name_for_the_stack" in failure.value.by_rank[2]
    after = world.run("ranks.basic:whoami")
    assert {pid for *_, pid in before}.isdisjoint({pid for *_, pid in after})
    assert world.run("ranks.basic:total") == [6.0, 6.0, 6.0]


def test_the_collective_deadline_comes_first(world: World) -> None:
    """Ranks left alone in a collective raise by themselves, before the harness steps in."""
    with pytest.raises(WorldFailure, match=r"failed on ranks \[0, 2\] of 3") as failure:
        world.run("ranks.basic:enter_collective_unless", 1)
    assert "RuntimeError" in failure.value.by_rank[0]


@pytest.mark.parametrize("end", ["die_on", "abort_on"])
def test_a_dead_worker_is_noticed_at_once(end: str) -> None:
    """A worker that dies is reported by its rank and exit code, long before any deadline."""
    with World("gloo", 2) as world:
        world.run("ranks.basic:whoami")
        started = time.monotonic()
        with pytest.raises(WorldFailure, match=r"worker died on ranks \{1: -(9|6)\} of 2"):
            world.run(f"ranks.basic:{end}", 1)
        assert time.monotonic() - started < world.deadlines.collective / 2
        assert world.run("ranks.basic:total") == [3.0, 3.0]


def test_an_unknown_function_is_a_failure_on_every_rank(world: World) -> None:
    """A misspelt case cannot pass."""
    with pytest.raises(WorldFailure, match=r"ranks \[0, 1, 2\]"):
        world.run("ranks.basic:no_such_function")


def test_a_fresh_world_has_no_process_group_yet() -> None:
    """For tests about init order: the case joins when it likes, in processes nobody used before."""
    with World("gloo", 2, join=False) as world:
        assert world.run("ranks.basic:is_initialized") == [False, False]
        assert world.run("ranks.basic:remember", "fresh") == [1, 1]
        world.run("harness.worker:join_group")
        assert world.run("ranks.basic:total") == [3.0, 3.0]


def test_closing_a_world_ends_its_processes() -> None:
    """Nothing is left running."""
    world = World("gloo", 2)
    world.run("ranks.basic:whoami")
    processes = list(world.processes)
    world.close()
    assert all(process.exitcode == 0 for process in processes)


def test_worlds_hands_out_one_world_a_backend_and_size() -> None:
    """Asking twice gives the same world."""
    worlds = Worlds()
    assert worlds.get("gloo", 2) is worlds.get("gloo", 2)
    assert worlds.get("gloo", 2) is not worlds.get("gloo", 3)
    worlds.close()
