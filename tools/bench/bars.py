# SPDX-License-Identifier: MIT
"""What a run should show, and whether it does."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .contenders import BARE, CONTENDERS, KNOWN, NULL, PAD, RAW, SIZES_FIRST, TORCHMETRICS
from .estimate import Estimate, geometric_mean
from .grid import EXCHANGES, KIB, Point
from .results import Results

PASSED, FAILED, UNDECIDED, UNMEASURED = "passed", "failed", "undecided", "not measured"
Judged = tuple[str, str, str]  # a promise, what was found, and whether it holds
RIVALS = list(dict.fromkeys(one.name for one in CONTENDERS if one.is_rival))
ALMOST = 0.9  # of the time: where the interval ends above it, "not slower" is taken for shown
PYTHON_MS = {"sizes known": 0.055, "sizes not known": 0.09}  # a call, over a group that moves nothing


class Bar(NamedTuple):
    """Where a contender should take at least `times` as long as the core: as a geometric mean, or at every point."""

    where: str
    times: float
    includes: Callable[[Point], bool]
    than: str = PAD
    at_every_point: bool = False

    @property
    def promise(self) -> str:
        """In words."""
        goal = f"within {1 / self.times:.2g} of" if self.times < 1 else f"{self.times:.2g} times as fast as"
        return f"{self.where}: {goal} {self.than}, {'at every point' if self.at_every_point else 'geometric mean'}"


def _is_small(world: int, point: Point) -> bool:
    return (point.world, point.mean_bytes, point.direction) == (world, 4 * KIB, "forward")


def _far_skewed(point: Point) -> bool:
    return point.form == "skewed" and point.world == 8 and point.mean_bytes >= 256 * KIB


BARS = [
    *(
        Bar(f"forward, {w} ranks, 4 KiB a rank", times, partial(_is_small, w), at_every_point=True)
        for w, times in ((2, 1.3), (4, 2.0), (8, 2.0))
    ),
    Bar("forward, ragged and skewed", 3.0, lambda p: p.direction == "forward" and p.form != "even"),
    Bar("forward, even", 2.0, lambda p: p.direction == "forward" and p.form == "even"),
    Bar("forward, skewed, 8 ranks, from 256 KiB", 8.0, lambda p: p.direction == "forward" and _far_skewed(p)),
    Bar("both, ragged and skewed", 2.5, lambda p: p.direction == "both" and p.form != "even"),
    Bar("both, even", 1.8, lambda p: p.direction == "both" and p.form == "even"),
    Bar("both, skewed, 8 ranks, from 256 KiB", 6.0, lambda p: p.direction == "both" and _far_skewed(p)),
    Bar("forward, dim 0, from 256 KiB", 1 / 1.3, lambda p: p.dim == 0 and p.mean_bytes >= 256 * KIB, RAW + KNOWN, True),
]


def _is_smallest(point: Point) -> bool:
    return (point.world, point.mean_bytes) == (2, 4 * KIB)


EXCHANGE_BARS = [
    Bar(
        "all_to_all, counts not known, 2 ranks, 4 KiB",
        1 / 1.3,
        lambda p: p.direction == "all-to-all" and _is_smallest(p),
        SIZES_FIRST,
        True,
    ),
    Bar(
        "all_to_all, counts not known, all others",
        1.0,  # slower beyond its interval at any point fails
        lambda p: p.direction == "all-to-all" and not _is_smallest(p),
        SIZES_FIRST,
        True,
    ),
    Bar("all_to_all, counts known", 1 / 1.15, lambda p: p.direction == "all-to-all, known", BARE, True),
    Bar("all_gather_each, ragged shapes", 2.0, lambda p: p.direction == "each", TORCHMETRICS, True),
]


def verdict(bar: float, found: list[Estimate]) -> str:
    """Whether each of these reaches the bar: undecided where an interval spans it."""
    if any(one.high < bar for one in found):
        return FAILED
    return UNMEASURED if not found else PASSED if all(one.low >= bar for one in found) else UNDECIDED


def rivals(results: Results) -> list[tuple[str, Point, Estimate]]:
    """Every ratio that should not be below 1."""
    return [(name, *pair) for name in RIVALS for pair in results.times(name).items()]


def judge(results: Results) -> list[Judged]:
    """Every promise of what was measured. Speed is promised on gloo only: on NCCL it depends on the GPUs."""
    exchanges = [point for point in results.timings if point.direction in EXCHANGES]
    if not exchanges:
        return [*judge_bars(BARS, results), *judge_gathers(results), judge_null(results)]
    judged = judge_bars(EXCHANGE_BARS, results)
    if len(exchanges) < len(results.timings):
        judged = [*judge_bars(BARS, results), *judge_gathers(results), *judged]
    return [*judged, judge_null(results)]


def judge_bars(bars: list[Bar], results: Results) -> list[Judged]:
    """Whether each bar is reached. They are bars of gloo."""
    judged = []
    on_gloo = results.facts.get("backend", "gloo") == "gloo"
    for bar in bars if on_gloo else []:
        found = results.times(
            bar.than, [point for point in results.timings if point.world <= 8 and bar.includes(point)]
        )
        worst = min(found, key=lambda point: found[point].centre, default=None)
        if worst is None:
            judged.append((bar.promise, "", UNMEASURED))
        elif bar.at_every_point:
            shown = f"{found[worst]} at worst: {worst.label}"
            judged.append((bar.promise, shown, verdict(bar.times, list(found.values()))))
        else:
            mean = geometric_mean(found.values())
            judged.append((bar.promise, str(mean), verdict(bar.times, [mean])))
    return judged


def judge_gathers(results: Results) -> list[Judged]:
    """That no gather is slower than another, and how long Python takes."""
    judged = []
    pairs = [pair for pair in rivals(results) if pair[1].direction not in EXCHANGES]
    slower = [f"{name} {times}: {point.label}" for name, point, times in pairs if times.high < 1]
    shown = "\n".join([f"{len(slower)} of {len(pairs)} pairs are slower", *slower])
    # that nothing was seen to be slower means little where intervals are wide
    word = FAILED if slower else verdict(ALMOST, [times for _, _, times in pairs])
    judged.append(("never slower than any other", shown, word))
    for name, most in PYTHON_MS.items():
        spent = [ms for key, ms in results.python.items() if key == name]
        speeds = [Estimate(1 / ms.centre, 1 / ms.high, 1 / ms.low) for ms in spent]
        judged.append((f"Python a call, {name}: {most} ms", "".join(map(str, spent)), verdict(1 / most, speeds)))
    return judged


def judge_null(results: Results) -> Judged:
    """Whether the core takes as long as itself: of intervals of 95 %, one in twenty misses."""
    null = list(results.times(NULL).values())
    missed = sum(not one.low <= 1 <= one.high for one in null)
    shown = f"{geometric_mean(null)}; {missed} of {len(null)} intervals miss 1" if null else ""
    word = UNMEASURED if not null else PASSED if missed <= 1 + 0.1 * len(null) else FAILED
    return "the core takes as long as itself", shown, word
