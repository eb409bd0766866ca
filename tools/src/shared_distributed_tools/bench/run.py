# SPDX-License-Identifier: MIT
"""A run: every point of a grid, world by world."""

from collections.abc import Sequence
from math import ceil

from rich.console import Console
from rich.progress import TimeElapsedColumn, TimeRemainingColumn

from ..terminal import progress
from .cases import SECONDS_TO_START, Mode, Point, estimated_seconds, steps
from .record import Record
from .world import World


def run(points: Sequence[Point], modes: Sequence[Mode], budget: float, console: Console) -> Record:
    """Measure `points` in each of `modes`; budget: seconds for a point in one mode, if it can be kept."""
    record = Record.of_this_machine()
    estimates = {step: estimated_seconds(*step, budget) for step in steps(points, modes)}
    total = sum(estimates.values())
    about = in_words(SECONDS_TO_START + total)
    console.print(f"points: {len(points)}, each in {len(modes)} modes: about {about} on two idle cores")
    for name, reason in record.left_out.items():
        console.print(f"left out: {name} ({reason})")
    done = 0.0
    with progress(TimeElapsedColumn(), TimeRemainingColumn()) as report:
        for size in dict.fromkeys(point.world for point in points):
            with World(size) as world:
                for (point, mode), seconds in estimates.items():
                    if point.world == size:
                        report(done, total, f"{point.label}, {mode}")
                        record.add(point, mode, world.measure(point, mode, budget))
                        done += seconds
    return record


def in_words(seconds: float) -> str:
    """An estimate, not closer than it is known: 50 s, 13 min."""
    return f"{seconds / 60:.0f} min" if seconds > 100 else f"{10 * ceil(seconds / 10)} s"
