# SPDX-License-Identifier: MIT
"""A run against an earlier one: speed-ups over the baseline, since the machine may have been busier then."""

from typing import NamedTuple

from .cases import MODES, Mode, Point
from .contenders import BASELINE, KNOWN, UNKNOWN
from .record import Record, geometric_mean


class Change(NamedTuple):
    """How a contender's speed-up over the baseline changed in a mode. Above 1: it is faster now."""

    mode: Mode
    contender: str
    points: int
    mean: float
    slower: tuple[Point, ...]  # slower now by more than the noise of both runs together


def compare(now: Record, before: Record) -> list[Change]:
    """The core's contenders, over the points that both runs measured."""
    changes = []
    for mode in MODES:
        for contender in (KNOWN, UNKNOWN):
            ratios = {}
            for point in now.points(mode):
                new = now.ratio(point, mode, BASELINE, contender)
                old = before.ratio(point, mode, BASELINE, contender)
                if new is not None and old is not None:
                    ratios[point] = new / old
            mean = geometric_mean(ratios.values())
            if mean is not None:
                noise = {p: now.noise(mode, p.mean_bytes) * before.noise(mode, p.mean_bytes) for p in ratios}
                slower = tuple(point for point, ratio in ratios.items() if ratio * noise[point] < 1)
                changes.append(Change(mode, contender, len(ratios), mean, slower))
    return changes
