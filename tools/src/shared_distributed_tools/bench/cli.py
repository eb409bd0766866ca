# SPDX-License-Identifier: MIT
"""`adapters bench`: its options."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .cases import WORLD_SIZES

if TYPE_CHECKING:
    from .record import Record


def _read_record(_context: click.Context, _option: click.Parameter, path: Path | None) -> "Record | None":
    """Read before anything is measured: a wrong file should not cost a run."""
    from .record import Record

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
def command(quick: bool, world_size: tuple[str, ...], output: Path, against: "Record | None") -> None:
    """Measure the core, the adapters, and what else a user could pick, side by side on this machine.

    Contenders take turns within one run and are compared as ratios. Every contender's values are
    checked before it is timed.
    """
    from .main import bench  # torch comes with it, and `--help` goes without

    bench([int(size) for size in world_size] or WORLD_SIZES, output, against, quick=quick)
