# SPDX-License-Identifier: MIT
"""What a run found, as tables: on the screen, and in Markdown for README and the page on speed."""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from rich.table import Table
from rich.text import Text

from .bars import FAILED, PASSED, Judged, judge
from .contenders import KNOWN, PAD
from .estimate import geometric_mean
from .grid import DIRECTIONS, KIB, Direction, Point, bytes_in_words
from .results import Results, Timing

HEAD = ["pad to longest takes", "forward", "forward, sizes known", "forward + backward", "both, sizes known"]
ROWS: dict[str, Callable[[Point], bool]] = {
    "even": lambda point: point.form == "even",
    "ragged": lambda point: point.form == "ragged",
    "skewed": lambda point: point.form == "skewed",
    "4 KiB a rank, of any form": lambda point: point.mean_bytes == 4 * KIB,
}
COLOURS = {PASSED: "green", FAILED: "red"}


def comparison(results: Results, direction: Direction) -> Table:
    """How many times as long as ours each contender takes: a row for each world, form and size, both dims in one."""
    rows: dict[tuple[int, int, str], list[Point]] = {}
    for point in results.timings:
        if point.direction == direction:
            rows.setdefault((point.world, point.mean_bytes, point.form), []).append(point)
    names = dict.fromkeys(name for points in rows.values() for point in points for name in results.timings[point])
    table = Table(title=f"{DIRECTIONS[direction]}: times as long as the core, ± in per cent", title_justify="left")
    for heading in ("W", "a rank", "form", *names):
        table.add_column(heading.replace(" ", "\n"), justify="right")
    for (world, size, form), points in rows.items():
        cells = [[results.timings[point][name] for point in points] for name in names]
        table.add_row(str(world), bytes_in_words(size), form, *map(_cell, cells))
    return table


def _cell(timings: list[Timing]) -> Text:
    """A ratio, green where ours is faster and red where it is slower beyond the interval; for ours, milliseconds."""
    times = [timing.times for timing in timings if timing.times]
    if not times:
        return Text(f"{geometric_mean(timing.ms for timing in timings).centre:.3g} ms")
    ratio = geometric_mean(times)
    style = "green" if ratio.low > 1 else "red" if ratio.high < 1 else ""
    return Text(f"{ratio.centre:.2f} ±{50 * (ratio.width - 1):.0f}", style)


def verdicts(judged: list[Judged]) -> Table:
    """Every bar, what was found, and whether it holds."""
    shown = Table("bar", "found [95 % interval]", "verdict", title="bars", title_justify="left")
    for promise, found, word in judged:
        shown.add_row(promise, found, Text(word, COLOURS.get(word, "yellow")))
    return shown


def summary(results: Results) -> str:
    """The table of README and of the page on speed, in Markdown: geometric means over up to 8 ranks."""
    rows = [HEAD]
    for words, where in ROWS.items():
        cells = []
        for direction, name in product(("forward", "both"), (PAD, PAD + KNOWN)):
            here = [p for p in results.timings if p.direction == direction and p.world <= 8 and where(p)]
            found = results.times(name, here)
            cells.append("{:.1f}× ({:.1f} to {:.1f})".format(*geometric_mean(found.values())) if found else "–")
        rows.append([words, *cells])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is its head."""
    lines = [f"| {' | '.join(cell.replace(chr(10), '<br>') for cell in row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def publish(results: Results, *pages: Path) -> None:
    """Put each table in the place of the one with the same head, in pages that have it."""
    bars = markdown([("bar", "found [95 % interval]", "verdict"), *judge(results)])
    for page, table in product(pages, (summary(results), bars)):
        before, head, after = page.read_text(encoding="utf-8").partition(table.partition("\n")[0])
        if head:
            page.write_text(before + table + "\n\n" + after.partition("\n\n")[2], encoding="utf-8")
