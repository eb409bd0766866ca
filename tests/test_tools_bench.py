# SPDX-License-Identifier: MIT
"""The benchmark's own logic, with timings made up; and one tiny run from end to end. Nothing here is timed."""

import io
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from rich.console import Console

from shared_distributed_tools.bench import cli, contenders, main, measure, tables
from shared_distributed_tools.bench.bars import Bar, judge
from shared_distributed_tools.bench.cases import (
    CASES,
    KIB,
    MIB,
    MODES,
    ROW_BYTES,
    Mode,
    Point,
    full_grid,
    quick_grid,
    steps,
)
from shared_distributed_tools.bench.compare import compare
from shared_distributed_tools.bench.contenders import BASELINE, KNOWN, NULL, RAW, RIVALS, UNKNOWN, Contender
from shared_distributed_tools.bench.measure import Timing, plan, turns
from shared_distributed_tools.bench.memory import highest, peak_bytes
from shared_distributed_tools.bench.plot import draw
from shared_distributed_tools.bench.record import Record, geometric_mean
from shared_distributed_tools.bench.run import in_words
from shared_distributed_tools.bench.world import RankFailedError, World

pytestmark = pytest.mark.usefixtures("server_of_the_tools")

TINY = Point(2, "skew", 4 * KIB, 0)


def record_of(points: list[Point], milliseconds: dict[str, float], modes: tuple[Mode, ...] = tuple(MODES)) -> Record:
    """A record in which every point took the same times; peaks as the core should have them."""
    record = Record({"torch": "0"})
    for point in points:
        for mode in modes:
            peak = 1.05 if mode == "forward" and point.mean_bytes == 4 * MIB else None
            record.add(point, mode, [Timing(name, ms, ms, 3, peak) for name, ms in milliseconds.items()])
    return record


def bar_named(bars: list[Bar], *words: str) -> Bar:
    return next(bar for bar in bars if all(word in bar.what for word in words))


@pytest.mark.parametrize("point", full_grid(), ids=str)
def test_sizes(point: Point) -> None:
    """Every case moves the same bytes in all; a rank is empty in one-empty only, and then one rank."""
    sizes = point.sizes
    assert len(sizes) == point.world
    assert sum(sizes) * ROW_BYTES == point.world * point.mean_bytes
    assert sizes.count(0) == (point.case == "one-empty")
    assert (len(set(sizes)) == 1) == (point.case == "even")
    assert torch.empty(point.shape(sizes[0]), device="meta").nbytes == sizes[0] * ROW_BYTES
    assert point.shape(sizes[0])[point.dim] == sizes[0]


def test_skew_is_skewed() -> None:
    """In the skewed case rank 0 has sixty-four times the rows of any other; in the mild one less than twice."""
    skew, mild = (Point(8, case, 4 * MIB, 0).sizes for case in ("skew", "mild"))
    assert 63 < skew[0] / skew[1] < 66
    assert mild == tuple(sorted(mild, reverse=True))
    assert 1.5 < mild[0] / mild[-1] < 2


def test_grids() -> None:
    """The full grid is the published one; the quick one touches every world and is a part of it."""
    full, quick = full_grid(), quick_grid()
    assert len(full) == len(set(full)) == 2 * 4 * 4 * 2 + 3 * 4 * 2
    assert {point.case for point in full} == set(CASES)
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
    """The peak is the highest running sum, and temporaries count while they live."""
    assert highest([5, -5, 3, 4, -7]) == 7
    assert highest([]) == 0
    kept, with_temporary = torch.empty(2**20).fill_, lambda: torch.ones(2**20) + torch.ones(2**20)
    assert peak_bytes(lambda: kept(1.0)) < 4 * MIB
    assert 12 * MIB <= peak_bytes(with_temporary) < 13 * MIB


def test_geometric_mean() -> None:
    """Those that did not take part are passed over; of nothing there is no mean."""
    assert geometric_mean([2.0, None, 8.0]) == pytest.approx(4)
    assert geometric_mean([None]) is None


def test_record_round_trip() -> None:
    """A record read back is the record written, peaks and absences included."""
    record = record_of(quick_grid(), {KNOWN: 1.0, BASELINE: 2.5, NULL: 2.4})
    record.left_out["accelerate"] = "accelerate is not installed"
    assert Record.from_json(record.to_json()) == record


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 0}', "not json"])
def test_record_refuses_what_is_none(text: str) -> None:
    """A file that no run wrote is a ValueError, not a record without points."""
    with pytest.raises(ValueError, match=r"not a benchmark record|Expecting value"):
        Record.from_json(text)


def test_record_names_no_machine() -> None:
    """The facts of the machine say what matters for times, and not whose machine it is."""
    text = Record.of_this_machine().to_json()
    assert torch.__version__ in text
    assert "cores" in text
    assert str(Path.home()) not in text
    assert not platform.node() or platform.node() not in text


def test_noise_is_how_far_the_baseline_strays() -> None:
    """The null contender's worst ratio, either way, among the points of the same bytes."""
    record = record_of([TINY], {BASELINE: 3.0, NULL: 2.0})
    record.add(TINY._replace(dim=1), "forward", [Timing(BASELINE, 1, 1, 3, None), Timing(NULL, 2, 2, 3, None)])
    assert record.noise("forward", 4 * KIB) == pytest.approx(2)
    assert record.noise("sum", 4 * KIB) == pytest.approx(1.5)
    assert record.noise("sum", 4 * MIB) == 1


def test_ratio_of_who_took_part() -> None:
    """How many times faster one is than another; None, and no error, where one of them is absent."""
    record = record_of([TINY], {BASELINE: 3.0, KNOWN: 2.0})
    assert record.ratio(TINY, "forward", BASELINE, KNOWN) == pytest.approx(1.5)
    assert record.ratio(TINY, "forward", RAW, KNOWN) is None
    assert record.ratio(TINY._replace(world=4), "forward", BASELINE, KNOWN) is None


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_number_is_cut_off(width: int) -> None:
    """A terminal too narrow for every contender gets several tables, each number whole and each contender once."""
    times = {contender.name: 1.0 for contender in contenders.CONTENDERS} | {BASELINE: 1234.5}
    record = record_of(quick_grid(), times)
    names = [name for name in record.contenders("forward") if name not in (BASELINE, NULL)]
    screen = Console(width=width, file=io.StringIO())
    shown = [tables.ratios(record, "forward", screen), tables.means(record, screen)]
    for made in shown:
        with screen.capture() as captured:
            screen.print(*made)
        assert "…" not in captured.get()
        headings = [str(column.header).replace("\n", " ") for table in made for column in table.columns]
        assert all(headings.count(name) == 1 for name in names), headings
    assert (len(shown[0]) == 1) == (width == 200)


def test_bars_met() -> None:
    """A core that is nine times faster than all rivals, and as fast as the limit, meets every bar."""
    times = dict.fromkeys((*RIVALS, NULL), 9.0) | dict.fromkeys((KNOWN, UNKNOWN, RAW), 1.0)
    bars = judge(record_of(full_grid(), times))
    assert len(bars) == 13
    assert all(bar.verdict.startswith("met") for bar in bars), bars


def test_bars_not_met() -> None:
    """A core that is twice as slow as all others meets none but that on memory, and each says by how much."""
    times = dict.fromkeys((*RIVALS, NULL, RAW), 1.0) | dict.fromkeys((KNOWN, UNKNOWN), 2.0)
    bars = judge(record_of(full_grid(), times))
    assert [bar.what for bar in bars if not bar.verdict.startswith("not met")] == [
        bar_named(bars, "peak over input").what
    ]
    assert bar_named(bars, "forward: geometric mean", "ragged").verdict == "not met, by 83%"
    assert bar_named(bars, "raw limit").verdict == "not met, by 25%"


def test_bars_without_points() -> None:
    """What was not measured is said to be so: it is neither met nor not."""
    assert {bar.verdict for bar in judge(Record({}))} == {"not measured"}


def test_one_slow_point_is_found() -> None:
    """Never slower is about every point and every rival: one pair among hundreds breaks the bar, and is named."""
    times = dict.fromkeys((*RIVALS, NULL), 9.0) | dict.fromkeys((KNOWN, UNKNOWN, RAW), 1.0)
    record = record_of(full_grid(), times)
    where = Point(4, "mild", 256 * KIB, 1)
    record.timings[where, "forward"]["accelerate"] = Timing("accelerate", 0.5, 0.5, 3, None)
    bar = bar_named(judge(record), "forward: never slower")
    assert bar.verdict == "not met, by 50%"
    assert "accelerate at W 4, mild, 256 KiB, dim 1; slower in 1 of 264 pairs" in bar.measured


def test_noise_excuses_a_slow_point() -> None:
    """A core that is slower by less than the baseline strays from itself is not called slower."""
    times = dict.fromkeys((*RIVALS, KNOWN), 1.0) | {UNKNOWN: 1.2}
    assert not bar_named(judge(record_of([TINY], times | {NULL: 1.1})), "forward: never").verdict.startswith("met")
    assert bar_named(judge(record_of([TINY], times | {NULL: 1.3})), "forward: never").verdict.startswith("met")


def test_compare_is_relative_to_the_baseline() -> None:
    """A machine that is half as fast changes nothing; a core that is half as fast does, at every point."""
    times = {KNOWN: 1.0, UNKNOWN: 2.0, BASELINE: 8.0, NULL: 8.0}
    before = record_of(quick_grid(), times)
    slow_machine = record_of(quick_grid(), {name: 2 * ms for name, ms in times.items()})
    slow_core = record_of(quick_grid(), times | {KNOWN: 2.0})
    assert {(change.mean, change.slower) for change in compare(slow_machine, before)} == {(1.0, ())}
    by_name = {(change.mode, change.contender): change for change in compare(slow_core, before)}
    assert len(by_name) == 8
    assert by_name["forward", KNOWN].mean == pytest.approx(0.5)
    assert by_name["forward", KNOWN].slower == tuple(quick_grid())
    assert by_name["forward", UNKNOWN].slower == ()


def test_compare_over_shared_points_only() -> None:
    """Points of one run alone are passed over."""
    times = {KNOWN: 1.0, BASELINE: 8.0, NULL: 8.0}
    changes = compare(record_of(quick_grid(), times), record_of([TINY], times))
    assert {change.points for change in changes} == {1}


def test_not_installed_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rival that is not installed takes no part, and the reason is given."""
    monkeypatch.setattr(contenders, "find_spec", lambda _: None)
    assert set(contenders.left_out()) == {"torchmetrics", "accelerate"}
    there = [c.name for c in contenders.CONTENDERS if c.takes_part("forward", TINY)]
    assert BASELINE in there
    assert not {"torchmetrics", "accelerate"} & set(there)


def test_even_only_contender_stays_out_of_ragged_points() -> None:
    """The functional all-gather of torch cannot do uneven sizes."""
    functional = next(c for c in contenders.CONTENDERS if c.even_only)
    assert functional.takes_part("forward", TINY._replace(case="even"))
    assert not functional.takes_part("forward", TINY)


def test_plot(tmp_path: Path) -> None:
    """An SVG that is the same for the same data, and a PNG without a background."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    times = {name: 2.0 + place for place, name in enumerate((KNOWN, UNKNOWN, *RIVALS, NULL, RAW))}
    record = record_of(full_grid([2]), times, ("forward",))
    svg, png = draw(record, "forward", tmp_path / "a")
    again, _ = draw(record, "forward", tmp_path / "b")
    assert svg.read_text() == again.read_text()
    assert all(words in svg.read_text() for words in ("2 ranks", "32 MiB", *CASES))
    assert pyplot.imread(png)[0, 0, 3] == 0


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


def test_failing_rank_is_reported() -> None:
    """What a rank raised reaches the parent, and no rank is left behind."""
    with World(2) as world, pytest.raises(RankFailedError, match=r"(?s)rank . of 2 failed at .*KeyError: 'nonsense'"):
        world.measure(TINY._replace(case="nonsense"), "forward", 0.1)  # type: ignore[arg-type]
    assert not any(process.is_alive() for process in world._processes)


LOADED_WHILE_MEASURED = """
import sys
from contextlib import suppress
from importlib import import_module
from shared_distributed_tools.bench.cases import Point
from shared_distributed_tools.bench.world import PRELOADED
from shared_distributed_tools.processes import Place

for name in PRELOADED:
    with suppress(ModuleNotFoundError):
        import_module(name)
Place(0, 1, sys.argv[1]).join()
before = set(sys.modules)
import_module(PRELOADED[0]).measure(Point(1, "even", 4096, 0), "sum", 0.0)
print(len(set(sys.modules) - before))
"""


def test_ranks_have_imported_what_they_measure_with(tmp_path: Path) -> None:
    """Else each would, in its first backward and its first functional collective: seconds that no estimate has."""
    command = [sys.executable, "-c", LOADED_WHILE_MEASURED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert int(done.stdout) < 20, done.stderr


def test_an_estimate_is_given_in_round_numbers() -> None:
    """Up to the next ten seconds, then in minutes."""
    assert [in_words(seconds) for seconds in (3, 42.7, 101, 790)] == ["10 s", "50 s", "2 min", "13 min"]


def test_a_tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, one point, from the command line to the files."""
    monkeypatch.setattr(main, "quick_grid", lambda worlds: [TINY] if 2 in worlds else [])
    monkeypatch.setattr(main, "QUICK_BUDGET", 0.0)
    shown = CliRunner().invoke(cli.command, ["--quick", "--output", str(tmp_path)], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "never slower" in shown.output
    names = {"bench.json", "bench-forward.svg", "bench-forward.png", "bench-forward-backward.svg"}
    assert names <= {path.name for path in tmp_path.iterdir()}

    record = Record.load(tmp_path / "bench.json")
    assert record.points("forward") == [TINY]
    expected = [c.name for c in contenders.CONTENDERS if c.takes_part("forward", TINY)]
    assert record.contenders("forward") == expected
    assert all(timing.median_ms >= timing.min_ms > 0 for row in record.timings.values() for timing in row.values())


def test_wrong_file_to_compare_with(tmp_path: Path) -> None:
    """A file that is no record is refused before anything is measured."""
    other = tmp_path / "other.json"
    other.write_text("{}")
    shown = CliRunner().invoke(cli.command, ["--quick", "--against", str(other)])
    assert shown.exit_code == 2
    assert "not a benchmark record" in shown.output
