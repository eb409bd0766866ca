# SPDX-License-Identifier: MIT
"""The whole of `adapters bench`: measure, write, show."""

from collections.abc import Sequence
from pathlib import Path

from .. import terminal
from . import tables
from .bars import judge
from .cases import MODES, Mode, full_grid, quick_grid
from .compare import compare
from .plot import draw
from .record import Record
from .run import run

FULL_BUDGET, QUICK_BUDGET = 0.8, 0.4  # seconds for a point in one mode
QUICK_MODES: tuple[Mode, ...] = ("forward", "backward", "sum")


def bench(worlds: Sequence[int], output: Path, against: Record | None, *, quick: bool) -> None:
    """Measure on some world sizes, leave record and plots in a folder, show tables; beside an earlier record's."""
    console = terminal.console()
    if quick:
        record = run(quick_grid(worlds), QUICK_MODES, QUICK_BUDGET, console)
    else:
        record = run(full_grid(worlds), tuple(MODES), FULL_BUDGET, console)

    output.mkdir(parents=True, exist_ok=True)
    written = [output / "bench.json"]
    written[0].write_text(record.to_json())  # first: what was measured is kept whatever happens next
    try:
        written += draw(record, "forward", output / "bench-forward")
        written += draw(record, "sum", output / "bench-forward-backward")
    except ModuleNotFoundError as error:
        console.print(f"no plot: {error.name} is not installed")

    for mode in filter(record.points, MODES):
        console.print(*tables.ratios(record, mode, console))
    console.print(*tables.means(record, console), tables.peaks(record), tables.bars(judge(record)))
    if against is not None:
        console.print(tables.changes(compare(record, against)))
    console.print("written:", ", ".join(map(str, written)))
