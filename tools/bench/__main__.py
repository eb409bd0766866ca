# SPDX-License-Identifier: MIT
"""A run: every point of a grid, world by world; then the files and the tables."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.progress import TimeElapsedColumn, TimeRemainingColumn

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.ranks import Deadlines, World, preload
from shared_distributed_tools.render import render
from shared_distributed_tools.terminal import console, progress

from .contenders import CONTENDERS, module_of
from .grid import MODES, WORLD_SIZES, Mode, Point, full_grid, quick_grid, steps
from .measure import measure
from .plot import draw
from .results import Results, peaks, speed_ups

FULL_BUDGET, QUICK_BUDGET = 0.8, 0.4  # seconds for a point in one mode
QUICK_MODES: tuple[Mode, ...] = ("forward", "backward", "sum")
DEADLINES = Deadlines(collective=600.0, case=610.0)  # the longest point takes a tenth of it
# what ranks import; the last: a first backward imports parts of it, a first functional collective all, on every rank
PRELOADED = ("bench.measure", "torchmetrics.utilities.distributed", "accelerate.utils.operations", "torch._dynamo")


def run(points: Sequence[Point], modes: Sequence[Mode], budget: float) -> Results:
    """Measure `points` in each of `modes`; budget: seconds for a point in one mode, if it can be kept."""
    preload(*PRELOADED)
    results = Results()
    planned = steps(points, modes)
    with progress(TimeElapsedColumn(), TimeRemainingColumn()) as report:
        for size in dict.fromkeys(point.world for point in points):
            with World(size, deadlines=DEADLINES) as world:
                for done, (point, mode) in enumerate(planned):
                    if point.world == size:
                        report(done, len(planned), f"{point.label}, {mode}")
                        # rank 0's account, as all ranks hold the same numbers
                        results.add(point, mode, world.run(measure, point, mode, budget)[0])
    return results


@click.command("bench")
@click.option("--quick", is_flag=True, help="A handful of points, in less than 90 seconds.")
@click.option("--vendored", is_flag=True, help="The rendered files too, beside the packages that they stand for.")
@click.option("--world-size", type=click.Choice([str(size) for size in WORLD_SIZES]), multiple=True, help="Only this.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="bench-results",
    show_default=True,
    help="Where bench.json and the plots go.",
)
def main(quick: bool, vendored: bool, world_size: tuple[str, ...], output: Path) -> None:
    """Measure the core, the adapters, and what else a user could pick, side by side on this machine.

    Contenders take turns within one run and are compared as ratios. Every contender's values are checked before it is
    timed.
    """
    worlds = [int(size) for size in world_size] or WORLD_SIZES
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if vendored:
            for name in ADAPTERS:
                Path(folder, f"{module_of(name, vendored=True)}.py").write_text(render(name), encoding="utf-8")
            sys.path.insert(0, folder)  # the ranks have this process's path
        if quick:
            results = run(quick_grid(worlds), QUICK_MODES, QUICK_BUDGET)
        else:
            results = run(full_grid(worlds), tuple(MODES), FULL_BUDGET)

    output.mkdir(parents=True, exist_ok=True)
    (output / "bench.json").write_text(results.to_json())  # first: what was measured is kept whatever happens next
    draw(results, "forward", output / "bench-forward.svg")
    draw(results, "sum", output / "bench-forward-backward.svg")
    console().print(*(speed_ups(results, mode) for mode in filter(results.points, MODES)), peaks(results))
    console().print(f"written: bench.json and two plots, in {output}")
    absent = [one.needs for one in CONTENDERS if one.needs and one.name not in results.contenders("forward")]
    if absent:
        console().print("not there, and left out:", ", ".join(absent))


if __name__ == "__main__":
    main()
