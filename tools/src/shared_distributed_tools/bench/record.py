# SPDX-License-Identifier: MIT
"""What a run found: kept as JSON, and asked for times and ratios."""

import json
import math
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .cases import Mode, Point
from .contenders import BASELINE, CONTENDERS, NULL, left_out, versions
from .measure import Timing

FORMAT = 1


@dataclass
class Record:
    """Timings by point and mode, in the order of measuring, and the facts of the machine."""

    machine: dict[str, Any]
    left_out: dict[str, str] = field(default_factory=dict)
    timings: dict[tuple[Point, Mode], dict[str, Timing]] = field(default_factory=dict)

    @classmethod
    def of_this_machine(cls) -> "Record":
        """An empty record. No names or paths: it is made to be published."""
        machine = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "backend": "gloo",
            "threads a rank": 1,
            "versions": versions(),
        }
        return cls(machine, left_out())

    def add(self, point: Point, mode: Mode, timings: Iterable[Timing]) -> None:
        """Keep what one point gave."""
        self.timings[point, mode] = {timing.contender: timing for timing in timings}

    def points(self, mode: Mode) -> list[Point]:
        """Every point measured in a mode."""
        return [point for point, of_mode in self.timings if of_mode == mode]

    def contenders(self, mode: Mode) -> list[str]:
        """Everyone that took part in a mode, in the order of the list of contenders."""
        seen = {name for (_, of_mode), row in self.timings.items() if of_mode == mode for name in row}
        return [contender.name for contender in CONTENDERS if contender.name in seen]

    def ratio(self, point: Point, mode: Mode, slow: str, fast: str) -> float | None:
        """How many times faster `fast` was than `slow` there; None where one of them did not take part."""
        row = self.timings.get((point, mode), {})
        return row[slow].median_ms / row[fast].median_ms if slow in row and fast in row else None

    def noise(self, mode: Mode, mean_bytes: int) -> float:
        """How far the baseline strayed from itself: the worst ratio, >= 1, at any point of these bytes."""
        points = [point for point in self.points(mode) if point.mean_bytes == mean_bytes]
        strays = [self.ratio(point, mode, BASELINE, NULL) or 1.0 for point in points]
        return max((max(ratio, 1 / ratio) for ratio in strays), default=1.0)

    def peaks(self) -> Iterator[tuple[Point, str, float]]:
        """Every peak of allocations that was taken."""
        for (point, _), row in self.timings.items():
            for timing in row.values():
                if timing.peak is not None:
                    yield point, timing.contender, timing.peak

    def to_json(self) -> str:
        """As text; `from_json` gives an equal record back."""
        rows = [
            {**point._asdict(), "mode": mode, **timing._asdict()}
            for (point, mode), row in self.timings.items()
            for timing in row.values()
        ]
        whole = {"format": FORMAT, "machine": self.machine, "left_out": self.left_out, "timings": rows}
        return json.dumps(whole, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Read a record; ValueError where it is none of ours."""
        whole = json.loads(text)
        if not isinstance(whole, dict) or whole.get("format") != FORMAT:
            msg = f"not a benchmark record of format {FORMAT}"
            raise ValueError(msg)
        record = cls(whole["machine"], whole["left_out"])
        for row in whole["timings"]:
            point = Point(*(row[name] for name in Point._fields))
            timing = Timing(*(row[name] for name in Timing._fields))
            record.timings.setdefault((point, row["mode"]), {})[timing.contender] = timing
        return record

    @classmethod
    def load(cls, path: Path) -> "Record":
        """Read a file written by an earlier run."""
        return cls.from_json(path.read_text())


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """Of those that are there; None if none is."""
    logs = [math.log(ratio) for ratio in ratios if ratio is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None
