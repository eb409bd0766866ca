# SPDX-License-Identifier: MIT
"""The benchmark: its logic with timings made up, one tiny run from end to end; and the demo. Nothing is timed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from rich.console import Console

from bench import __main__ as bench
from bench import contenders, measure
from bench.contenders import BASELINE, KNOWN, NULL, RAW, TORCHMETRICS, UNKNOWN, Contender
from bench.grid import CASES, KIB, MIB, MODES, ROW_BYTES, Mode, Point, full_grid, quick_grid, steps
from bench.measure import Timing, peak_bytes, plan, turns
from bench.plot import draw
from bench.results import Results, peaks, speed_ups

ROOT = Path(__file__).resolve().parents[2]
TINY = Point(2, "skew", 4 * KIB, 0)


def results_of(points: list[Point], milliseconds: dict[str, float]) -> Results:
    """Results in which every point took the same times."""
    results = Results()
    for point in points:
        for mode in MODES:
            peak = 1.05 if mode == "forward" else None
            results.add(point, mode, [Timing(name, ms, ms, 3, peak) for name, ms in milliseconds.items()])
    return results


def test_the_grid() -> None:
    """Every case moves the same bytes in all; a rank is empty in one-empty only, and then one rank."""
    full, quick = full_grid(), quick_grid()
    for point in full:
        sizes = point.sizes
        assert (len(sizes), sum(sizes) * ROW_BYTES) == (point.world, point.world * point.mean_bytes)
        assert sizes.count(0) == (point.case == "one-empty")
        assert (len(set(sizes)) == 1) == (point.case == "even")
        assert torch.empty(point.shape(sizes[0]), device="meta").nbytes == sizes[0] * ROW_BYTES
        assert point.shape(sizes[0])[point.dim] == sizes[0]
    assert len(full) == len(set(full)) == 2 * 4 * 4 * 2 + 3 * 4 * 2
    assert max(point.world for point in full if point.mean_bytes == 32 * MIB) == 4
    assert set(quick) < set(full)
    assert {point.world for point in quick} == {2, 4, 8}
    assert {point.world for point in full_grid([4])} == {4}


def test_large_sizes_are_not_measured_twice() -> None:
    """The own-slice backward from 4 MiB, and adapters at 32 MiB, would repeat what forward and the core say."""
    large = Point(2, "mild", 32 * MIB, 0)
    assert steps([TINY, large], ("forward", "local")) == [(TINY, "forward"), (TINY, "local"), (large, "forward")]
    both = [[c.takes_part("forward", point) for point in (TINY, large)] for c in contenders.CONTENDERS]
    changed = {c.name for c, (small, big) in zip(contenders.CONTENDERS, both, strict=True) if small != big}
    assert changed == {"musiclm", "spear-tts", "mirasol", "st-moe"}


def test_plan_keeps_to_the_budget() -> None:
    """Short calls are bundled, long ones are not; repetitions fill the budget between their bounds."""
    assert plan([0.001, 0.1], budget=1.0) == ([20, 1], 8)
    assert plan([10.0], budget=1.0) == ([1], 3)
    assert plan([1e-9], budget=100.0) == ([20], 15)


def test_turns_are_shared_and_change() -> None:
    """Every contender has one turn a repetition, in an order that all ranks derive, and that changes."""
    orders = [turns(10, repetition) for repetition in range(5)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5
    assert orders == [turns(10, repetition) for repetition in range(5)]


def test_peak_of_allocations() -> None:
    """The peak is the most at one time, and temporaries count while they live."""
    kept, with_temporary = torch.empty(2**20).fill_, lambda: torch.ones(2**20) + torch.ones(2**20)
    assert peak_bytes(lambda: kept(1.0)) < 4 * MIB
    assert 12 * MIB <= peak_bytes(with_temporary) < 13 * MIB


def test_speed_ups_and_noise() -> None:
    """Times faster than the baseline; None for who took no part. Noise is how far the baseline strays from itself."""
    results = results_of([TINY], {BASELINE: 3.0, NULL: 2.0, KNOWN: 1.5})
    slower = [Timing(BASELINE, 1, 1, 3, None), Timing(NULL, 2, 2, 3, None)]
    results.add(TINY._replace(dim=1), "forward", slower)
    assert results.speed_up([TINY], "sum", KNOWN) == pytest.approx(2)
    assert results.speed_up([TINY], "sum", RAW) is None
    assert results.noise("forward", 4 * KIB) == pytest.approx(2)
    assert results.noise("sum", 4 * KIB) == pytest.approx(1.5)
    assert results.noise("sum", 4 * MIB) == 1


def test_the_tables_hold_every_contender() -> None:
    """Speed-ups by point and by case, and the worst peak."""
    results = results_of(quick_grid(), {KNOWN: 0.5, BASELINE: 2.0, NULL: 2.0, TORCHMETRICS: 4.0})
    screen = Console(width=200)
    with screen.capture() as captured:
        screen.print(speed_ups(results, "forward"), peaks(results))
    shown = captured.get()
    assert all(word in shown for word in ("4.00", "0.50", "torchmetrics", "all", "1.05", "256 KiB"))


def test_plot(tmp_path: Path) -> None:
    """An SVG that is the same for the same data."""
    times = {name: 2.0 + place for place, name in enumerate((KNOWN, UNKNOWN, BASELINE, TORCHMETRICS, NULL, RAW))}
    results = results_of(full_grid([2]), times)
    text = draw(results, "forward", tmp_path / "a.svg").read_text()
    assert text == draw(results, "forward", tmp_path / "b.svg").read_text()
    assert all(words in text for words in ("2 ranks", "32 MiB", *CASES))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("mode", MODES)
def test_nobody_wins_by_being_wrong(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender whose values are off is an error that names it, before anything is timed."""
    right = Contender("right", tuple(MODES), lambda _: lambda tensor: tensor + 0)
    wrong = Contender("wrong", tuple(MODES), lambda _: lambda tensor: tensor * 2)
    point = Point(1, "even", 4 * KIB, 0)
    monkeypatch.setattr(measure, "CONTENDERS", (right,))
    assert [timing.contender for timing in measure.measure(point, mode, 0.0)] == ["right"]
    monkeypatch.setattr(measure, "CONTENDERS", (right, wrong))
    with pytest.raises(AssertionError, match="wrong gives a wrong answer"):
        measure.measure(point, mode, 0.0)


def test_a_tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, one point, rendered files too, from the command line to the files."""
    monkeypatch.setattr(bench, "quick_grid", lambda worlds: [TINY] if 2 in worlds else [])
    monkeypatch.setattr(bench, "QUICK_BUDGET", 0.0)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["--quick", "--vendored", "--output", str(tmp_path)]
    shown = CliRunner().invoke(bench.main, arguments, catch_exceptions=False)
    assert shown.exit_code == 0
    rows = json.loads((tmp_path / "bench.json").read_text())["timings"]
    measured = {row["contender"] for row in rows if row["mode"] == "forward"}
    assert {KNOWN, UNKNOWN, BASELINE, "musiclm", "musiclm, vendored", "st-moe, vendored", RAW} <= measured
    assert all(row["median_ms"] >= row["min_ms"] > 0 for row in rows)
    assert (tmp_path / "bench-forward.svg").exists()


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
