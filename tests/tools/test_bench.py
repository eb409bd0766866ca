# SPDX-License-Identifier: MIT
"""The benchmark: its logic with timings made up, one tiny run from end to end; and the demo. Nothing is timed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from math import exp
from pathlib import Path
from random import Random

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from rich.console import Console

from bench import __main__ as bench
from bench import measure
from bench.bars import BARS, EXCHANGE_BARS, FAILED, PASSED, PYTHON_MS, UNDECIDED, UNMEASURED, judge
from bench.contenders import (
    BARE,
    CONTENDERS,
    FUNCTIONAL,
    KNOWN,
    NULL,
    OURS,
    PAD,
    PAD_ONCE,
    RAW,
    SIZES_FIRST,
    Contender,
)
from bench.estimate import FEWEST, Estimate, estimate, geometric_mean
from bench.grid import (
    EXCHANGES,
    FORMS,
    KIB,
    MIB,
    ROW_BYTES,
    WORLDS,
    Direction,
    Point,
    crossing_grid,
    exchange_grid,
    full_grid,
    quick_grid,
)
from bench.measure import Rounds, ratios, turns
from bench.plot import draw_growth, draw_ratios
from bench.results import Results, deciles
from bench.tables import comparison, crossings, markdown, publish, summary
from tests.support import World

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "shared" / "distributed" / "docs"
TINY = Point(2, "skewed", 4 * KIB, 0, "forward")


def rounds_of(factors: dict[str, float], count: int = 40, noise: float = 0.05) -> Rounds:
    """Rounds in which each contender takes so many times as long as the core, a little more or less each time."""
    chance = Random(0)
    return {name: [factor * exp(chance.gauss(0, noise)) for _ in range(count)] for name, factor in factors.items()}


def results_of(points: list[Point], factors: dict[str, float], noise: float = 0.05) -> Results:
    """Results in which the contenders that take part took the same at every point."""
    results = Results({"machine": {}}, python=dict.fromkeys(PYTHON_MS, Estimate(0.05, 0.049, 0.051)))
    for point in points:
        here = {one.name: factors.get(one.name, 1.0) for one in CONTENDERS if point.direction in one.directions}
        results.add(point, rounds_of(here, noise=noise))
    return results


FAST = dict.fromkeys((PAD, PAD + KNOWN, "torchmetrics", "accelerate", "all-reduce and slice"), 20.0)
FAST |= {FUNCTIONAL: 9.0, FUNCTIONAL + KNOWN: 3.0}

# ------------------------------------------------------------------ points


def test_the_grid() -> None:
    """Every form moves the same bytes in all; every world size, form, dim and direction is there; 16 ranks are few."""
    full = full_grid(WORLDS)
    for point in [*full, *crossing_grid(WORLDS)]:
        sizes = point.sizes
        assert (len(sizes), sum(sizes) * ROW_BYTES) == (point.world, point.world * point.mean_bytes)
        assert min(sizes) > 0
        assert (len(set(sizes)) == 1) == (point.form in ("even", "0/16"))
        assert torch.empty(point.shape(sizes[0]), device="meta").nbytes == sizes[0] * ROW_BYTES
        assert point.shape(sizes[0])[point.dim] == sizes[0]
    assert len(full) == len(set(full)) == 3 * 3 * 7 * 3 + 4
    assert {point[1::2] for point in full if point.world < 16} == {(form, dim) for form in FORMS for dim in (0, 1)}
    assert set(quick_grid(WORLDS)) < set(full)
    assert {point.world for point in full_grid([4])} == {4}


def test_the_grid_of_exchanges() -> None:
    """From 4 KiB to 4 MiB a rank on 2, 4 and 8 ranks; nearly as many bytes in each form; shapes differ everywhere."""
    grid = exchange_grid(WORLDS)
    assert {(point.world, point.mean_bytes) for point in grid if point.direction == "all-to-all"} == {
        (world, size) for world in (2, 4, 8) for size in (4 * KIB, 64 * KIB, 256 * KIB, 4 * MIB)
    }
    for point in grid:
        if point.direction == "each":
            assert len(set(point.shapes)) == point.world
        else:
            rows = sum(map(sum, point.counts))
            assert 0.5 < rows * ROW_BYTES / (point.world * point.mean_bytes) <= 1
            assert (len({tuple(sent) for sent in zip(*point.counts, strict=True)}) == 1) == (point.form == "even")


def test_unevenness_in_sixteenths() -> None:
    """At k/16 the shortest rank has k/16 less than the longest, and the others lie between."""
    assert Point(2, "4/16", 7 * 256, 0, "crossing").sizes == (8, 6)
    assert Point(4, "12/16", 10 * 256, 0, "crossing").sizes == (16, 12, 8, 4)


# ------------------------------------------------------------------ numbers


def test_an_estimate_withstands_single_values() -> None:
    """Six values give the interval from the least to the greatest; one wild value among many changes little."""
    assert estimate([1.0, 2, 4, 8, 16, 32]) == (5.657, 1, 32)
    values = rounds_of({"a": 3.0})["a"]
    assert estimate([*values, 1e6]).centre == pytest.approx(estimate(values).centre, rel=0.02)
    assert estimate(values).low < 3 < estimate(values).high < 3.15


def test_intervals_cover_the_truth() -> None:
    """About 95 in 100 hold the true centre, of few values and of more."""
    chance = Random(1)
    for count in (FEWEST, 25):
        found = [estimate([exp(chance.gauss(0.7, 0.5)) for _ in range(count)]) for _ in range(300)]
        assert 0.92 <= sum(one.low <= exp(0.7) <= one.high for one in found) / 300 <= 0.99


def test_the_mean_of_estimates_is_surer_than_each() -> None:
    """Errors of independent estimates add up in squares: four have half of one's."""
    mean = geometric_mean([Estimate(2.0, 1.0, 4.0), Estimate(8.0, 4.0, 16.0)] * 2)
    assert mean == pytest.approx(Estimate(4.0, 4 / 2**0.5, 4 * 2**0.5))


def test_contenders_are_compared_within_a_round() -> None:
    """What slows a whole round down does not count; each is compared with the core that knows as much."""
    slow = [1.0, 30.0, 2.0, 500.0, 7.0, 90.0, 11.0]
    rounds = {OURS: slow, PAD: [3 * ms for ms in slow], OURS + KNOWN: [ms / 2 for ms in slow], RAW + KNOWN: slow}
    expected = {PAD: 3.0, OURS + KNOWN: 0.5, RAW + KNOWN: 2.0}
    assert {name: one.centre for name, one in ratios(rounds).items()} == pytest.approx(expected)
    assert all(one.width == pytest.approx(1) for one in ratios(rounds).values())


def test_turns_are_shared_and_change() -> None:
    """Every contender has one turn a round, in an order that all ranks derive, and that changes."""
    names = [one.name for one in CONTENDERS]
    orders = [turns(names, number) for number in range(5)]
    assert all(sorted(order) == sorted(names) for order in orders)
    assert len({tuple(order) for order in orders}) == 5
    assert orders == [turns(names, number) for number in range(5)]


# ------------------------------------------------------------------ bars, tables, plots, pages


def verdicts(results: Results) -> dict[str, str]:
    return {promise: word for promise, _, word in judge(results)}


def test_a_median_does_not_hide_calls_that_take_one_of_two_times() -> None:
    """The percentiles of the rounds are kept, and loaded again."""
    assert deciles([0.3] * 8 + [3.0] * 3) == [0.3, 0.3, 3.0]


def test_a_run_on_nccl_is_not_judged_by_the_bars_of_gloo() -> None:
    """What is promised on any backend is still judged."""
    points = quick_grid([2])
    slow = results_of(points, {PAD: 1.01})
    on_gloo = verdicts(slow)
    assert FAILED in on_gloo.values()
    slow.facts["backend"] = "nccl"
    on_nccl = verdicts(slow)
    assert not [bar.promise for bar in BARS if bar.promise in on_nccl]
    assert "never slower than any other" in on_nccl
    assert on_nccl == {promise: word for promise, word in on_gloo.items() if promise in on_nccl}


def test_bars_are_passed_failed_undecided_or_not_measured() -> None:
    """An interval above the bar passes, one below fails, one across is undecided; a bar without points says so."""
    grid = [point for point in full_grid(WORLDS) if point.dim == 0]
    words = verdicts(results_of(grid, FAST))
    assert set(words.values()) == {PASSED}
    assert len(words) == len(BARS) + 4
    slow = verdicts(results_of(grid, {PAD: 1.0, RAW + KNOWN: 0.5}))
    assert [slow[bar.promise] for bar in BARS] == [FAILED] * len(BARS)
    few = verdicts(results_of([TINY], {**FAST, PAD: 1.31}, noise=0.2))
    assert few["forward, 2 ranks, 4 KiB a rank: 1.3 times as fast as pad to longest, at every point"] == UNDECIDED
    assert few["forward, 4 ranks, 4 KiB a rank: 2 times as fast as pad to longest, at every point"] == UNMEASURED


def test_exchanges_have_bars_of_their_own() -> None:
    """They are judged where they were measured, and gathers where those were."""
    grid = exchange_grid(WORLDS)
    words = verdicts(results_of(grid, {SIZES_FIRST: 1.2, BARE: 1.0, "torchmetrics": 3.0}, noise=0.01))
    assert len(words) == len(EXCHANGE_BARS) + 1
    assert set(words.values()) == {PASSED}
    slow = verdicts(results_of(grid, {SIZES_FIRST: 0.7, BARE: 0.8, "torchmetrics": 1.5}, noise=0.01))
    assert [slow[bar.promise] for bar in EXCHANGE_BARS] == [FAILED] * 4
    both = verdicts(results_of([TINY, *grid], FAST))
    assert len(both) == len(BARS) + len(EXCHANGE_BARS) + 4


def test_a_point_where_the_core_is_slower_is_named() -> None:
    """One pair beyond its interval fails the bar and is listed; wide intervals leave it undecided."""
    results = results_of([TINY], {**FAST, FUNCTIONAL: 0.7})
    ((_, found, word),) = [row for row in judge(results) if row[0] == "never slower than any other"]
    assert word == FAILED
    assert "torch functional 0.7" in found
    assert found.endswith(TINY.label)
    assert (
        verdicts(results_of([TINY], {**FAST, FUNCTIONAL: 1.0}, noise=1.0))["never slower than any other"] == UNDECIDED
    )


def test_a_core_that_differs_from_itself_is_noticed() -> None:
    """The null contender's ratio is 1, or the run is not to be believed."""
    assert verdicts(results_of(full_grid([2]), {**FAST, NULL: 1.2}))["the core takes as long as itself"] == FAILED


def test_results_are_kept_whole(tmp_path: Path) -> None:
    """JSON gives back what was measured, to four digits: the same bars, the same page."""
    results = results_of(quick_grid([2]), FAST)
    results.save(tmp_path / "speed.json")
    loaded = Results.load(tmp_path / "speed.json")
    assert loaded.timings.keys() == results.timings.keys()
    assert (judge(loaded), summary(loaded)) == (judge(results), summary(results))
    assert [path.name for path in tmp_path.iterdir()] == ["speed.json"]


def test_the_comparison_holds_every_contender() -> None:
    """A row for each world, size and form; milliseconds for the core, ratios for the others."""
    screen = Console(width=240)
    with screen.capture() as captured:
        screen.print(comparison(results_of(full_grid([2]), {**FAST, RAW + KNOWN: 0.75}, noise=0.0), "forward"))
    assert all(word in captured.get() for word in ("torchmetrics", "1 ms", "20.00 ±0", "0.75 ±0", "64 KiB", *FORMS))


def test_the_crossing_is_named() -> None:
    """At which unevenness real rows are faster, and at which padding is; where the interval spans 1, neither."""
    results = Results()
    for form, factor in (("0/16", 0.5), ("1/16", 1.0), ("8/16", 2.0)):
        rounds = rounds_of({OURS + KNOWN: 1.0, PAD_ONCE + KNOWN: factor})
        results.add(Point(4, form, MIB, 0, "crossing"), rounds)
    (line,) = crossings(results)
    assert line == "4 ranks, 1 MiB a rank: real rows are faster at 8/16, padding at 0/16, of 0/16, 1/16, 8/16"


def test_plots(tmp_path: Path) -> None:
    """SVGs that are the same for the same data, also of a run that was cut off."""
    results = results_of(full_grid([2, 16]), FAST)
    for name in ("a", "b"):
        draw_ratios(results, "forward", tmp_path / f"{name}.svg")
        draw_growth(results, tmp_path / f"{name}-growth.svg")
    text, growth = (tmp_path / "a.svg").read_text(), (tmp_path / "a-growth.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert all(words in text for words in ("2 ranks", "4 MiB", PAD, *FORMS))
    assert growth == (tmp_path / "b-growth.svg").read_text()
    assert all(words in growth for words in (">16<", "256 KiB a rank", OURS + KNOWN))
    draw_ratios(results_of([TINY], FAST), "both", tmp_path / "empty.svg")


def test_publishing_replaces_the_tables(tmp_path: Path) -> None:
    """Each table stands where the one with the same head stood; what is around it stays, and so do other pages."""
    results, page, other = results_of(quick_grid([2]), FAST), tmp_path / "page.md", tmp_path / "other.md"
    page.write_text(
        f"before\n\n{summary(Results())}\n\nbetween\n\n| bar | found [95 % interval] | verdict |\n|-|\n\nafter\n"
    )
    other.write_text("nothing here\n")
    publish(results, page, other)
    bars = markdown([("bar", "found [95 % interval]", "verdict"), *judge(results)])
    assert page.read_text() == f"before\n\n{summary(results)}\n\nbetween\n\n{bars}\n\nafter\n"
    assert other.read_text() == "nothing here\n"


def test_the_pages_say_what_the_published_run_says(tmp_path: Path) -> None:
    """README and the page on speed hold the tables of speed.json, which is published beside them."""
    results = Results.load(DOCS / "speed.json")
    for page in (DOCS / "speed.md", ROOT / "README.md"):
        assert summary(results) in page.read_text()
        copy = tmp_path / page.name
        copy.write_text(page.read_text())
        publish(results, copy)
        assert copy.read_text() == page.read_text()


# ------------------------------------------------------------------ on ranks


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


EVERYWHERE: tuple[Direction, ...] = ("forward", "backward", "both", "crossing")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("direction", EVERYWHERE)
def test_nobody_wins_by_being_wrong(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender whose values are off is an error that names it, before anything is timed."""
    right = Contender(OURS, lambda tensor, *_: tensor + 0, EVERYWHERE)
    wrong = Contender("wrong", lambda tensor, *_: tensor * 2, EVERYWHERE)
    point = Point(1, "even", 4 * KIB, 0, direction)
    monkeypatch.setattr(measure, "CONTENDERS", (right,))
    assert list(measure.measure(point, 0.0)) == [OURS]
    monkeypatch.setattr(measure, "CONTENDERS", (right, wrong))
    with pytest.raises(AssertionError, match="wrong gives a wrong answer"):
        measure.measure(point, 0.0)


def exchanged() -> list[list[str]]:
    """Who takes part in each exchange; every answer is checked."""
    return [list(measure.checked_calls(Point(2, "ragged", 4 * KIB, 0, direction))) for direction in EXCHANGES]


def test_every_contender_of_an_exchange_is_right() -> None:
    """On two ranks."""
    with World(2) as world:
        for all_to_all, known, each in world.run(exchanged):
            assert all_to_all == [OURS, NULL, SIZES_FIRST]
            assert known == [OURS, NULL, BARE]
            assert each[:2] == [OURS, NULL]


@pytest.mark.usefixtures("alone")
def test_rounds_end_when_the_time_is_up_or_nothing_is_left_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest that give an interval; more while ratios are uncertain and there is time; never more than allowed."""
    point, count = Point(1, "even", 4 * KIB, 0, "backward"), lambda seconds: len(measure.measure(point, seconds)[OURS])
    both = [Contender(name, lambda tensor, *_: tensor + 0, ("backward",)) for name in (OURS, NULL)]
    monkeypatch.setattr(measure, "CONTENDERS", both)
    monkeypatch.setattr(measure, "NARROW", 1.0)
    assert count(0.0) == FEWEST
    assert measure.MOST <= count(60.0) <= 1.6 * measure.MOST
    monkeypatch.setattr(measure, "NARROW", 1e9)
    assert count(60.0) == FEWEST


def test_a_tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks: a point of each direction, and one that fails without ending the run."""
    points = [TINY._replace(direction=direction) for direction in EVERYWHERE]
    points.insert(1, TINY._replace(form="no form", mean_bytes=MIB))
    monkeypatch.setattr(bench, "quick_grid", lambda worlds: points if 2 in worlds else [])
    monkeypatch.setattr(bench, "QUICK_SECONDS", 600.0)
    monkeypatch.setattr(bench, "PASSES", (0.0, 0.0))  # the fewest rounds
    arguments = ["--quick", "--bars", "--output", str(tmp_path)]
    shown = CliRunner().invoke(bench.main, arguments)
    assert shown.exit_code == 1
    assert "no form, 1 MiB a rank, dim 0: measure failed on ranks" in shown.output
    rows = {row["direction"]: row["contenders"] for row in json.loads((tmp_path / "speed.json").read_text())["points"]}
    assert {OURS, NULL, PAD, PAD + KNOWN, FUNCTIONAL, FUNCTIONAL + KNOWN, RAW + KNOWN} <= rows["forward"].keys()
    assert {OURS, PAD, FUNCTIONAL + KNOWN} <= rows["both"].keys()
    assert rows["backward"].keys() == {OURS, NULL, "all-reduce and slice"}
    assert rows["crossing"].keys() == {OURS + KNOWN, PAD_ONCE + KNOWN}
    assert (tmp_path / "speed-growth.svg").exists()
    again = CliRunner().invoke(
        bench.main, ["--from", str(tmp_path / "speed.json"), "--output", str(tmp_path / "again")]
    )
    assert again.exit_code == 0
    assert (tmp_path / "again" / "speed.json").read_text() == (tmp_path / "speed.json").read_text()


def test_the_demo_fits_on_a_screen_and_is_right() -> None:
    """Eighty columns, every way to gather with exact values, exit code 0."""
    command = [sys.executable, str(ROOT / "tools" / "demo.py")]
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if " exact " in line] == [
        *("core", "core", "musiclm", "musiclm", "spear-tts", "mirasol", "st-moe")
    ]
