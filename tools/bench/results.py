# SPDX-License-Identifier: MIT
"""What a run found: written as JSON, asked for ratios, and shown as tables."""

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import geometric_mean

import torch
from rich.table import Table
from rich.text import Text

from .contenders import BASELINE, CONTENDERS, NULL
from .grid import MODES, Mode, Point, bytes_in_words
from .measure import Timing


@dataclass
class Results:
    """Timings by point and mode, in the order of measuring."""

    timings: dict[tuple[Point, Mode], dict[str, Timing]] = field(default_factory=dict)

    def add(self, point: Point, mode: Mode, timings: Iterable[Timing]) -> None:
        """Keep what one point gave."""
        self.timings[point, mode] = {timing.contender: timing for timing in timings}

    def points(self, mode: Mode) -> list[Point]:
        """Every point measured in a mode."""
        return [point for point, of_mode in self.timings if of_mode == mode]

    def contenders(self, mode: Mode) -> list[str]:
        """Everyone that took part in a mode, in the order of the list of contenders."""
        present = {name for (_, of_mode), row in self.timings.items() if of_mode == mode for name in row}
        return [contender.name for contender in CONTENDERS if contender.name in present]

    def speed_up(self, points: Iterable[Point], mode: Mode, name: str) -> float | None:
        """How many times faster a contender was than the baseline: the geometric mean; None where it took no part."""
        rows = [self.timings[point, mode] for point in points]
        ratios = [row[BASELINE].median_ms / row[name].median_ms for row in rows if name in row]
        return geometric_mean(ratios) if ratios else None

    def noise(self, mode: Mode, mean_bytes: int) -> float:
        """How far the baseline strayed from itself: the worst ratio, >= 1, at any point of these bytes."""
        points = [point for point in self.points(mode) if point.mean_bytes == mean_bytes]
        strays = [self.speed_up([point], mode, NULL) or 1.0 for point in points]
        return max((max(ratio, 1 / ratio) for ratio in strays), default=1.0)

    def to_json(self) -> str:
        """As text, with the facts of the machine. No names or paths: it is made to be published."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        system = f"{platform.system()} {platform.machine()}"
        machine = {"torch": torch.__version__, "python": platform.python_version(), "system": system, "cores": cores}
        rows = [
            {**point._asdict(), "mode": mode, **timing._asdict()}
            for (point, mode), row in self.timings.items()
            for timing in row.values()
        ]
        return json.dumps({"machine": machine, "timings": rows}, indent=1) + "\n"


def speed_ups(results: Results, mode: Mode) -> Table:
    """A row for each world, case and size, with both dims in one mean; then a row for each case.

    Geometric means. Coloured where it is more than noise.
    """
    contenders = [name for name in results.contenders(mode) if name not in (BASELINE, NULL)]
    table = Table(title=f"{MODES[mode]}: times faster than the baseline, {BASELINE}", title_justify="left")
    for heading in ("W", "case", "mean a rank", "baseline, ms", "noise ±", *contenders):
        table.add_column(heading.replace(" ", "\n"), justify="left" if heading == "case" else "right")
    rows: dict[tuple[str, ...], list[Point]] = {}
    for is_total in (False, True):
        for point in results.points(mode):
            place = ("all", "all") if is_total else (str(point.world), bytes_in_words(point.mean_bytes))
            rows.setdefault((place[0], point.case, place[1]), []).append(point)
    for heads, points in rows.items():
        noise = max(results.noise(mode, point.mean_bytes) for point in points)
        baseline = geometric_mean(results.timings[point, mode][BASELINE].median_ms for point in points)
        cells = []
        for name in contenders:
            ratio = results.speed_up(points, mode, name)
            style = "" if ratio is None else "green" if ratio > noise else "red" if ratio * noise < 1 else ""
            cells.append(Text("" if ratio is None else f"{ratio:.2f}", style))
        table.add_row(*heads, f"{baseline:.3g}", f"{noise - 1:.0%}", *cells)
    return table


def peaks(results: Results) -> Table:
    """The worst peak of allocations of each contender, over input + output."""
    worst: dict[tuple[str, int], tuple[float, Point]] = {}
    for (point, _), row in results.timings.items():
        for name, timing in row.items():
            if timing.peak is not None:
                worst[name, point.dim] = max(worst.get((name, point.dim), (0.0, point)), (timing.peak, point))
    title = "peak of torch's allocations, input included, over input + output: worst case"
    table = Table("contender", "dim", "peak", "where", title=title, title_justify="left")
    for (name, dim), (peak, point) in worst.items():
        table.add_row(name, str(dim), f"{peak:.2f}", point.label)
    return table
