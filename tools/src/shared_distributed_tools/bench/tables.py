# SPDX-License-Identifier: MIT
"""What is shown on the terminal."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import ceil

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .bars import Bar
from .cases import BASELINE_IN_WORDS, MODES, Mode, Point, bytes_in_words
from .compare import Change
from .contenders import BASELINE, NULL
from .record import Record, geometric_mean


def ratios(record: Record, mode: Mode, console: Console) -> list[Table]:
    """Speed-up over the baseline, a row for each world, case and size; both dims in one mean."""
    contenders = [name for name in record.contenders(mode) if name not in (BASELINE, NULL)]
    return _as_wide_as(console, partial(_ratios, record, mode), contenders)


def _ratios(record: Record, mode: Mode, contenders: Sequence[str]) -> Table:
    table = Table(title=f"{MODES[mode]}: times faster than {BASELINE_IN_WORDS[mode]}", title_justify="left")
    for heading in ("W", "case", "mean a rank", "baseline, ms", "noise ±", *contenders):
        table.add_column(_by_word(heading), justify="left" if heading == "case" else "right")
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


def means(record: Record, console: Console) -> list[Table]:
    """Geometric means by mode and case."""
    names = [name for name in record.contenders("forward") if name != BASELINE]
    return _as_wide_as(console, partial(_means, record), names)


def _means(record: Record, names: Sequence[str]) -> Table:
    title = "geometric means over the baseline (null: the baseline itself)"
    table = Table("mode", "case", title=title, title_justify="left")
    for name in names:
        table.add_column("null" if name == NULL else _by_word(name), justify="right")
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
    title = "what a full run on an idle machine is held to"
    table = Table("bar", "wanted", "measured", "verdict", title=title, title_justify="left")
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


def _as_wide_as(console: Console, table_of: Callable[[Sequence[str]], Table], names: Sequence[str]) -> list[Table]:
    """One table; where the terminal is too narrow for it, several with fewer contenders each."""
    endless = console.options.update_width(1000)
    tables: list[Table] = []
    for size in (ceil(len(names) / parts) for parts in range(1, len(names) + 1)):
        tables = [table_of(names[start : start + size]) for start in range(0, len(names), size)]
        if all(console.measure(table, options=endless).maximum <= console.width for table in tables):
            break
    return tables


def _by_word(heading: str) -> str:
    return heading.replace(" ", "\n")


def _cell(ratio: float | None, noise: float) -> Text:
    """Coloured only where the difference is more than noise."""
    if ratio is None:
        return Text("")
    style = "green" if ratio > noise else "red" if ratio * noise < 1 else ""
    return Text(f"{ratio:.2f}", style)
