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
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .estimate import Estimate, estimate
from .grid import Point
from .measure import Rounds, ratios


class Timing(NamedTuple):
    """What one contender did at one point: milliseconds, and how many times as long as ours it took."""

    ms: Estimate
    times: Estimate | None  # None where there is nothing to compare with


@dataclass
class Results:
    """Timings by point, in the order of measuring."""

    facts: dict[str, Any] = field(default_factory=dict)  # the machine, the versions
    timings: dict[Point, dict[str, Timing]] = field(default_factory=dict)
    python: dict[str, Estimate] = field(default_factory=dict)  # milliseconds a call over a fake group

    def add(self, point: Point, rounds: Rounds) -> None:
        """Keep what all rounds of a point say."""
        times = ratios(rounds)
        self.timings[point] = {name: Timing(estimate(ms), times.get(name)) for name, ms in rounds.items()}

    def times(self, name: str, points: Iterable[Point] | None = None) -> dict[Point, Estimate]:
        """How many times as long as ours a contender took, at each of these points where it took part."""
        rows = {point: self.timings[point] for point in (self.timings if points is None else points)}
        return {point: times for point, row in rows.items() if name in row and (times := row[name].times)}

    def save(self, path: Path) -> None:
        """As JSON, a line a point; never half written. No names or paths: it is made to be published."""
        rows = [
            json.dumps({**point._asdict(), "contenders": {name: _rounded(one) for name, one in row.items()}})
            for point, row in self.timings.items()
        ]
        head = {**self.facts, "python_ms": _rounded(self.python)}
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        text = "{\n" + ",\n".join([*lines, '"points": [\n' + ",\n".join(rows) + "\n]"]) + "\n}\n"
        path.with_suffix(".part").write_text(text, encoding="utf-8")
        path.with_suffix(".part").replace(path)

    @staticmethod
    def load(path: Path) -> "Results":
        """What `save` wrote."""
        facts = json.loads(path.read_text(encoding="utf-8"))
        python = {name: Estimate(*ms) for name, ms in facts.pop("python_ms").items()}
        results = Results(python=python)
        for row in facts.pop("points"):
            timings = {
                name: Timing(Estimate(*ms), times and Estimate(*times))
                for name, (ms, times) in row.pop("contenders").items()
            }
            results.timings[Point(**row)] = timings
        results.facts = facts
        return results


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, tuple) else value


def facts(backend: str) -> dict[str, Any]:
    """The machine and the versions that a run depends on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    described = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", described)
    machine: dict[str, Any] = {"system": f"{platform.system()} {platform.machine()}", "cores": cores}
    machine |= {"cpu": model[1] if model else "not known", "load": round(os.getloadavg()[0], 1)}
    if backend == "nccl":
        machine |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count()}
    names = ("shared-distributed", "torch", "torchmetrics", "accelerate")
    versions = {"python": platform.python_version(), **{name: version(name) for name in names}}
    date = datetime.now(timezone.utc).date().isoformat()
    return {"date": date, "backend": backend, "machine": machine, "versions": versions}
