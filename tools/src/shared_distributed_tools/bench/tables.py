# SPDX-License-Identifier: MIT
"""What is shown on the terminal."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from .bars import Bar
from .cases import BASELINE_IN_WORDS, MODES, Mode, Point, bytes_in_words
from .compare import Change
from .contenders import BASELINE, NULL
from .record import Record, geometric_mean


def ratios(record: Record, mode: Mode) -> Table:
    """Speed-up over the baseline, a row for each world, case and size; both dims in one mean."""
    contenders = [name for name in record.contenders(mode) if name not in (BASELINE, NULL)]
    table = Table(title=f"{MODES[mode]}: times faster than {BASELINE_IN_WORDS[mode]}", title_justify="left")
    for heading in ("W", "case", "mean a rank", "baseline, ms", "noise ±", *contenders):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    rows: dict[tuple[int, str, int], list[Point]] = {}
    for point in record.points(mode):
        rows.setdefault((point.world, point.case, point.mean_bytes), []).append(point)
    for (world, case, mean_bytes), points in rows.items():
        noise = record.noise(mode, mean_bytes)
        milliseconds = geometric_mean(record.timings[point, mode][BASELINE].median_ms for point in points)
        cells = [
            _cell(geometric_mean(record.ratio(point, mode, BASELINE, name) for point in points), noise)
            for name in contenders
        ]
        table.add_row(str(world), case, bytes_in_words(mean_bytes), f"{milliseconds:.3g}", f"{noise - 1:.0%}", *cells)
    return table


def means(record: Record) -> Table:
    """Geometric means by mode and case."""
    table = Table("mode", "case", title="geometric means over the baseline (null: the baseline itself)")
    names = [name for name in record.contenders("forward") if name != BASELINE]
    for name in names:
        table.add_column("null" if name == NULL else name, justify="right")
    for mode, words in MODES.items():
        for case in dict.fromkeys(point.case for point in record.points(mode)):
            points = [point for point in record.points(mode) if point.case == case]
            cells = [geometric_mean(record.ratio(point, mode, BASELINE, name) for point in points) for name in names]
            table.add_row(words, case, *("" if cell is None else f"{cell:.2f}" for cell in cells))
    return table


def peaks(record: Record) -> Table:
    """The worst peak of allocations of each contender, over input + output."""
    worst: dict[tuple[str, int], tuple[float, Point]] = {}
    for point, name, peak in record.peaks():
        worst[name, point.dim] = max(worst.get((name, point.dim), (0.0, point)), (peak, point))
    title = "peak of torch's allocations, input included, over input + output: worst case"
    table = Table("contender", "dim", "peak", "where", title=title, title_justify="left")
    for (name, dim), (peak, point) in worst.items():
        table.add_row(name, str(dim), f"{peak:.2f}", point.label)
    return table


def bars(judged: Sequence[Bar]) -> Table:
    """The bars."""
    table = Table("bar", "wanted", "measured", "verdict", title="bars", title_justify="left")
    for bar in judged:
        style = "dim" if bar.margin is None else "green" if bar.margin >= 1 else "red"
        table.add_row(bar.what, bar.wanted, bar.measured, Text(bar.verdict, style))
    return table


def changes(compared: Iterable[Change]) -> Table:
    """Against an earlier run."""
    title = "against the earlier run: change of the speed-up over the baseline"
    table = Table("mode", "contender", "points", "mean", "slower beyond the noise", title=title, title_justify="left")
    for change in compared:
        slower = "; ".join(point.label for point in change.slower[:3]) + (" …" if len(change.slower) > 3 else "")
        words = f"{len(change.slower)}: {slower}" if slower else "0"
        table.add_row(MODES[change.mode], change.contender, str(change.points), f"{change.mean:.2f}×", words)
    return table


def _cell(ratio: float | None, noise: float) -> Text:
    """Coloured only where the difference is more than noise."""
    if ratio is None:
        return Text("")
    style = "green" if ratio > noise else "red" if ratio * noise < 1 else ""
    return Text(f"{ratio:.2f}", style)
