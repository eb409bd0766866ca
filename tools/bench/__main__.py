# SPDX-License-Identifier: MIT
"""A run: every point of a grid, then those in doubt again; the files, the tables, the bars."""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import click
import torch
from rich.progress import TimeElapsedColumn

from shared_distributed_tools.ranks import Deadlines, World, WorldFailure, preload
from shared_distributed_tools.terminal import console, progress

from .bars import FAILED, judge, rivals
from .grid import DIRECTIONS, WORLDS, Point, crossing_grid, exchange_grid, full_grid, quick_grid
from .measure import Rounds, measure, pin, python_alone
from .plot import draw_growth, draw_ratios
from .results import Results, facts
from .tables import comparison, crossings, publish, verdicts

DOCS = Path(__file__).resolve().parents[2] / "shared" / "distributed" / "docs"
FULL_SECONDS, EXCHANGE_SECONDS, QUICK_SECONDS = 1020.0, 200.0, 55.0
PASSES = (0.75, 1.0)  # when each ends; the second visits only points where a rival may be faster
DEADLINES = Deadlines(collective=120.0, case=160.0)  # the longest point takes a quarter of it
# what ranks import; the last: a first backward imports parts of it, a first functional collective all, on every rank
PRELOADED = ("bench.measure", "torchmetrics.utilities.distributed", "accelerate.utils.operations", "torch._dynamo")


def run(points: Sequence[Point], seconds: float, backend: str, path: Path) -> tuple[Results, list[str]]:
    """Measure, and write to `path` after every point. The results, and in words what is missing from them and why."""
    preload(*PRELOADED)
    results, rounds, missing = Results(facts(backend)), dict[Point, Rounds](), dict.fromkeys(points, "no time left")
    with ExitStack() as stack, progress(TimeElapsedColumn()) as report:
        with World(1, join=False) as alone, suppress(WorldFailure):  # its bars then say "not measured"
            results.python = alone.run(python_alone)[0]
        sizes = dict.fromkeys(point.world for point in points)
        worlds = {n: stack.enter_context(World(n, backend, deadlines=DEADLINES, prepare=pin)) for n in sizes}
        start = time.monotonic()
        for share in PASSES:
            in_doubt = {point for _, point, times in rivals(results) if times.low < 1}
            visited = [point for point in points if point in in_doubt or not results.timings]
            for done, point in enumerate(visited):
                now = time.monotonic() - start
                if now > seconds:
                    break
                report(done, len(visited), point.label)
                budget = max(0.0, share * seconds - now) / (len(visited) - done)
                try:
                    found = worlds[point.world].run(measure, point, budget)[0]  # all ranks hold the same numbers
                except WorldFailure as failure:  # the next point gets new ranks
                    missing[point] = str(failure)
                    continue
                before = rounds.setdefault(point, {name: [] for name in found})
                for name, times in found.items():
                    before[name] += times
                results.add(point, before)
                results.save(path)
                missing.pop(point, None)
    return results, [f"{point.label}: {why}" for point, why in missing.items()]


@click.command("bench")
@click.option("--quick", is_flag=True, help="A few points, in less than 90 seconds.")
@click.option("--world-size", type=click.Choice([str(size) for size in WORLDS]), multiple=True, help="Only this.")
@click.option(
    "--crossing", is_flag=True, help="Only padding against real rows, by unevenness. Always part of a run on GPUs."
)
@click.option(
    "--only", type=click.Choice(["exchange"]), help="Only all_to_all and all_gather_each, in less than 4 minutes."
)
@click.option("--from", "file", type=click.Path(exists=True, path_type=Path), help="Measure nothing: show this JSON.")
@click.option("--publish", "is_published", is_flag=True, help="Write the page on speed and README instead of --output.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default="bench-results", show_default=True)
@click.option("--bars", "must_pass", is_flag=True, help="Exit with 1 if a bar failed or a point is missing.")
def main(
    quick: bool,
    world_size: tuple[str, ...],
    crossing: bool,
    only: str | None,
    file: Path | None,
    is_published: bool,
    output: Path,
    must_pass: bool,
) -> None:
    """Measure the core and what else a user could pick, side by side on this machine.

    Contenders take turns, call by call, and are compared as ratios with confidence intervals. Every contender's values
    are checked before it is timed. With two or more GPUs: on NCCL.
    """
    gpus = torch.cuda.device_count()
    backend, most = ("nccl", gpus) if gpus >= 2 else ("gloo", max(WORLDS))
    worlds = [size for size in map(int, world_size or WORLDS) if size <= most]
    seconds = QUICK_SECONDS if quick else FULL_SECONDS
    points = [] if crossing else quick_grid(worlds) if quick else full_grid(worlds)
    if crossing or backend == "nccl":
        points += crossing_grid(worlds)
    if only:
        points = exchange_grid(worlds)
        seconds = EXCHANGE_SECONDS
    output = DOCS if is_published else output
    output.mkdir(parents=True, exist_ok=True)
    results, problems = (Results.load(file), []) if file else run(points, seconds, backend, output / "speed.json")
    results.save(output / "speed.json")
    draw_ratios(results, "forward", output / "speed-forward.svg")
    draw_ratios(results, "both", output / "speed-forward-backward.svg")
    draw_growth(results, output / "speed-growth.svg")
    if is_published:
        publish(results, DOCS / "speed.md", DOCS.parents[2] / "README.md")
    judged = judge(results)
    shown = [direction for direction in DIRECTIONS if any(point.direction == direction for point in results.timings)]
    console().print(
        *(comparison(results, direction) for direction in shown), *crossings(results), verdicts(judged), sep="\n"
    )
    console().print(f"written: speed.json and three plots, in {output}", *problems, sep="\n")
    if must_pass and (problems or any(word == FAILED for _, _, word in judged)):
        sys.exit(1)


if __name__ == "__main__":
    main()
