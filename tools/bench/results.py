# SPDX-License-Identifier: MIT
"""What a run found: kept as JSON, and asked for ratios."""

import json
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .contenders import CONTENDERS
from .estimate import Estimate, estimate
from .grid import Point
from .measure import Rounds, ratios


class Timing(NamedTuple):
    """What one contender did at one point: milliseconds, and how many times as long as ours it took."""

    ms: Estimate
    times: Estimate | None  # None where there is nothing to compare with
    deciles: list[float] | None = None  # of the rounds' milliseconds: one call in ten can take ten times as long


@dataclass
class Results:
    """Timings by point and contender, in the order of measuring."""

    facts: dict[str, Any] = field(default_factory=dict)  # the machine, the versions
    timings: dict[Point, dict[str, Timing]] = field(default_factory=dict)
    python: dict[str, Estimate] = field(default_factory=dict)  # milliseconds a call over a fake group

    def add(self, point: Point, rounds: Rounds) -> None:
        """Keep what all rounds of a point say."""
        times = ratios(rounds)
        row = {name: Timing(estimate(ms), times.get(name), deciles(ms)) for name, ms in rounds.items()}
        self.timings[point] = row

    def times(self, name: str, points: Iterable[Point] | None = None) -> dict[Point, Estimate]:
        """How many times as long as ours a contender took, at each of these points where it took part."""
        rows = {point: self.timings[point] for point in (self.timings if points is None else points)}
        return {point: times for point, row in rows.items() if name in row and (times := row[name].times)}

    def save(self, path: Path) -> None:
        """As JSON, a line a point; never half written. No names or paths: it is made to be published."""
        points = [json.dumps({**point._asdict(), "contenders": row}) for point, row in self.timings.items()]
        head = json.dumps({**self.facts, "python_ms": self.python}, indent=1).removesuffix("\n}")
        part = path.with_suffix(".part")
        part.write_text(head + ',\n "points": [\n' + ",\n".join(points) + "\n ]\n}\n")
        part.replace(path)

    @staticmethod
    def load(path: Path) -> "Results":
        """What `save` wrote."""
        facts = json.loads(path.read_text())
        results = Results(python={name: Estimate(*ms) for name, ms in facts.pop("python_ms").items()})
        for point in facts.pop("points"):
            row = point.pop("contenders").items()
            timings = {
                name: Timing(Estimate(*ms), times and Estimate(*times), *found) for name, (ms, times, *found) in row
            }
            results.timings[Point(**point)] = timings
        results.facts = facts
        return results


def deciles(ms: list[float]) -> list[float]:
    """The 10th, 50th and 90th percentile: a median alone hides calls that take one of two times."""
    found = torch.tensor(ms, dtype=torch.float64).quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
    return [float(f"{value:.4g}") for value in found.tolist()]


def facts(backend: str) -> dict[str, Any]:
    """The machine and the versions that a run depends on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    described = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", described)
    machine: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores,
        "load": round(os.getloadavg()[0], 1),
    }
    machine["processor"] = torch.cuda.get_device_name() if backend == "nccl" else model[1] if model else "not known"
    names = ["shared-distributed", "torch", *(one.needs for one in CONTENDERS if one.needs and find_spec(one.needs))]
    versions = {"python": platform.python_version(), **{name: version(name) for name in names}}
    date = datetime.now(timezone.utc).date().isoformat()
    return {"date": date, "backend": backend, "machine": machine, "versions": versions}
