# SPDX-License-Identifier: MIT
"""`adapters bench`: measure, show, write."""

from pathlib import Path

import click

from .. import terminal
from . import tables
from .bars import judge
from .cases import MODES, WORLD_SIZES, Mode, full_grid, quick_grid
from .compare import compare
from .plot import draw
from .record import Record
from .run import run

FULL_BUDGET, QUICK_BUDGET = 0.8, 0.4  # seconds for a point in one mode
QUICK_MODES: tuple[Mode, ...] = ("forward", "backward", "sum")


def _read_record(_context: click.Context, _option: click.Parameter, path: Path | None) -> Record | None:
    """Read before anything is measured: a wrong file should not cost a run."""
    try:
        return None if path is None else Record.load(path)
    except (ValueError, KeyError) as error:
        msg = f"{path}: {error}"
        raise click.BadParameter(msg) from error


@click.command("bench")
@click.option("--quick", is_flag=True, help="A handful of points, in less than 90 seconds.")
@click.option("--world-size", type=click.Choice([str(size) for size in WORLD_SIZES]), multiple=True, help="Only this.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="bench-results",
    show_default=True,
    help="Where bench.json and the plots go.",
)
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_read_record,
    help="A bench.json of an earlier run to compare with.",
)
def command(quick: bool, world_size: tuple[str, ...], output: Path, against: Record | None) -> None:
    """Measure the core, the adapters, and what else a user could pick, side by side on this machine.

    Contenders take turns within one run and are compared as ratios. Every contender's values are
    checked before it is timed.
    """
    console = terminal.console()
    worlds = [int(size) for size in world_size] or WORLD_SIZES
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
