# SPDX-License-Identifier: MIT
"""The bars that the core is held to, each with what was measured and whether it is met.

Ratios only, of one and the same run. The baseline finds the sizes out by itself, so the core is judged
by its contender that does too; against the raw limit, which is told the sizes, by the one that is told.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .cases import KIB, MEMORY_AT, MIB, MODES, RAGGED, Mode, Point
from .contenders import BASELINE, KNOWN, RAW, RIVALS, UNKNOWN
from .record import Record, geometric_mean


class Bar(NamedTuple):
    """One bar. `margin`: measured over wanted, so that 1 and above is met; None where nothing was measured."""

    what: str
    wanted: str
    measured: str
    margin: float | None

    @property
    def verdict(self) -> str:
        """In words, by how much."""
        if self.margin is None:
            return "not measured"
        by = f"{abs(self.margin - 1):.0%}"
        return f"met, {by} to spare" if self.margin >= 1 else f"not met, by {by}"


def judge(record: Record) -> list[Bar]:
    """Every bar."""
    bars = [_never_slower(record, mode) for mode in ("forward", "sum", "local")]
    for mode in ("forward", "sum"):
        bars += [
            _mean(record, mode, "ragged", 3.0, lambda p: p.case in RAGGED),
            _mean(record, mode, "skew, W 8, from 256 KiB", 8.0, _is_heavy_skew),
            _mean(record, mode, "even", 1.5, lambda p: p.case == "even"),
        ]
    return [*bars, _near_limit(record), *_backward(record), _memory(record)]


def _is_heavy_skew(point: Point) -> bool:
    return point.case == "skew" and point.world == 8 and point.mean_bytes >= 256 * KIB


def _never_slower(record: Record, mode: Mode) -> Bar:
    pairs = [
        (ratio * record.noise(mode, point.mean_bytes), f"{ratio:.2f}× {rival} at {point.label}")
        for point in record.points(mode)
        for rival in RIVALS
        if (ratio := record.ratio(point, mode, rival, UNKNOWN)) is not None
    ]
    beyond, where = min(pairs, default=(None, ""))
    slower = sum(margin < 1 for margin, _ in pairs)
    measured = f"worst {where}; slower in {slower} of {len(pairs)} pairs" if pairs else ""
    return Bar(f"{MODES[mode]}: never slower than {', '.join(RIVALS)}", "≥ 1×, within the noise", measured, beyond)


def _mean(record: Record, mode: Mode, case: str, wanted: float, chosen: Callable[[Point], bool]) -> Bar:
    points = [point for point in record.points(mode) if chosen(point)]
    mean, known = (
        geometric_mean(record.ratio(point, mode, BASELINE, name) for point in points) for name in (UNKNOWN, KNOWN)
    )
    measured = "" if mean is None or known is None else f"{mean:.2f}× ({known:.2f}× with sizes known)"
    what = f"{MODES[mode]}: geometric mean over {BASELINE}, {case}"
    return Bar(what, f"≥ {wanted:g}×", measured, None if mean is None else mean / wanted)


def _near_limit(record: Record) -> Bar:
    points = [point for point in record.points("forward") if point.dim == 0 and point.mean_bytes >= 4 * MIB]
    ratios = [(record.ratio(point, "forward", KNOWN, RAW), point) for point in points]
    return _extreme("forward, dim 0, from 4 MiB: time over the raw limit", 1.5, ratios)


def _backward(record: Record) -> Iterable[Bar]:
    points = record.points("backward")
    even = geometric_mean(record.ratio(p, "backward", BASELINE, KNOWN) for p in points if p.case == "even")
    what = "summed backward over all-reduce + slice"
    measured = "" if even is None else f"{even:.2f}×"
    yield Bar(f"{what}: geometric mean, even", "≥ 1.5×", measured, None if even is None else even / 1.5)
    skew = [
        (ratio * record.noise("backward", point.mean_bytes), ratio, point)
        for point in points
        if point.case == "skew" and (ratio := record.ratio(point, "backward", BASELINE, KNOWN)) is not None
    ]
    beyond, ratio, point = min(skew, default=(None, 0.0, None))
    measured = "" if point is None else f"{ratio:.2f}× at {point.label}"
    yield Bar(f"{what}: never slower, skew", "≥ 1×, within the noise", measured, beyond)


def _memory(record: Record) -> Bar:
    peaks = [(peak, point) for point, name, peak in record.peaks() if name == KNOWN and point.dim == 0]
    return _extreme(f"forward, dim 0, {MEMORY_AT // MIB} MiB: peak over input + output", 1.1, peaks)


def _extreme(what: str, most: float, ratios: Iterable[tuple[float | None, Point]]) -> Bar:
    """A bar on the largest of some ratios, for which less is better."""
    there = [(ratio, point) for ratio, point in ratios if ratio is not None]
    if not there:
        return Bar(what, f"≤ {most:g}", "", None)
    worst, where = max(there)
    mean = geometric_mean(ratio for ratio, _ in there)
    return Bar(what, f"≤ {most:g}", f"{worst:.2f} at {where.label}, mean {mean:.2f}", most / worst)
