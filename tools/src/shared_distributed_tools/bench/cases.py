# SPDX-License-Identifier: MIT
"""What is measured: the grid of points, and the sizes and shapes at each.

world W · rank r · n_r rows of rank r along dim · ROW_BYTES a row, whatever the dim
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Case = Literal["even", "mild", "skew", "one-empty"]
Mode = Literal["forward", "backward", "sum", "local"]

CASES: tuple[Case, ...] = ("even", "mild", "skew", "one-empty")
RAGGED: tuple[Case, ...] = ("mild", "skew", "one-empty")
MODES: dict[Mode, str] = {
    "forward": "forward",
    "backward": "summed backward alone",
    "sum": "forward + summed backward",
    "local": "forward + own-slice backward",
}

# what the baseline does, which everything is compared with
BASELINE_IN_WORDS: dict[Mode, str] = {
    "forward": "pad to longest, gather, select",
    "backward": "all-reduce + slice",
    "sum": "pad to longest, gather, select; all-reduce + slice",
    "local": "pad to longest, gather, select; slice",
}

KIB, MIB = 2**10, 2**20
ROW_BYTES = 256
WORLD_SIZES = (2, 4, 8)
MEAN_BYTES = (4 * KIB, 256 * KIB, 4 * MIB, 32 * MIB)
LARGEST = 32 * MIB
LARGEST_UP_TO_WORLD = 4  # at 8 ranks the padding of the skewed case alone would need 15 GiB
MEMORY_AT = 4 * MIB  # peak allocations are taken here: large enough that buffers, not headers, are seen,
MEMORY_UP_TO_WORLD = 4  # and few enough that it does not take minutes


class Point(NamedTuple):
    """One place on the grid. `mean_bytes` is the mean over ranks of what a rank gathers."""

    world: int
    case: Case
    mean_bytes: int
    dim: int

    @property
    def weights(self) -> tuple[int, ...]:
        """How the rows are shared out, before rounding."""
        ones = (1,) * self.world
        return {
            "even": ones,
            "mild": tuple(2 * self.world - rank for rank in range(self.world)),
            "skew": (64, *ones[1:]),
            "one-empty": (1, 0, *ones[2:]),
        }[self.case]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each rank along dim. Only "one-empty" leaves a rank without any."""
        total = self.world * self.mean_bytes // ROW_BYTES
        rows = [max(min(1, weight), total * weight // sum(self.weights)) for weight in self.weights]
        rows[0] += total - sum(rows)  # what rounding left over
        return tuple(rows)

    def shape(self, rows: int) -> tuple[int, ...]:
        """`(rows, 64)` for dim 0, `(4, rows, 16)` for dim 1: the same bytes in float32."""
        return (rows, 64) if self.dim == 0 else (4, rows, 16)

    @property
    def padded_bytes(self) -> int:
        """What padding to the longest makes of the output."""
        return self.world * max(self.sizes) * ROW_BYTES

    @property
    def label(self) -> str:
        """The point in words."""
        return f"W {self.world}, {self.case}, {bytes_in_words(self.mean_bytes)}, dim {self.dim}"


def bytes_in_words(count: int) -> str:
    """4 KiB, 32 MiB."""
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"


def full_grid(worlds: Sequence[int] = WORLD_SIZES) -> list[Point]:
    """Every point; small worlds first, small tensors first."""
    return [
        Point(world, case, mean_bytes, dim)
        for world in worlds
        for mean_bytes in MEAN_BYTES
        if mean_bytes < LARGEST or world <= LARGEST_UP_TO_WORLD
        for case in CASES
        for dim in (0, 1)
    ]


def quick_grid(worlds: Sequence[int] = WORLD_SIZES) -> list[Point]:
    """A handful of points that touch every kind of bar."""
    small = [("skew", 4 * KIB, 0), ("even", 256 * KIB, 0), ("skew", 256 * KIB, 1)]
    large = [("mild", 4 * MIB, 0)]  # not at 8 ranks: padding takes seconds there
    return [
        Point(world, case, mean_bytes, dim)  # type: ignore[arg-type]
        for world in worlds
        for case, mean_bytes, dim in (small + large if world < 8 else small)
    ]


def steps(points: Sequence[Point], modes: Sequence[Mode]) -> list[tuple[Point, Mode]]:
    """What to measure, in order. An own slice is a view: where bytes decide it would only repeat "forward"."""
    return [(point, mode) for point in points for mode in modes if mode != "local" or point.mean_bytes < 4 * MIB]


# seconds for a GiB that all ranks together receive: through the contenders that pad, and the others
_SECONDS_A_GIB: dict[Mode, tuple[float, float]] = {
    "forward": (26.0, 16.0),
    "backward": (0.0, 16.0),
    "sum": (24.0, 24.0),
    "local": (20.0, 20.0),
}


SECONDS_TO_START = 6.0  # once a run: what the ranks' server imports


def estimated_seconds(point: Point, mode: Mode, budget: float) -> float:
    """Roughly how long a step takes on two cores, for the estimate at the start and the progress bar.

    Small points take their budget. Large ones take what the fewest repetitions need, most of it for padding.
    """
    padded, plain = _SECONDS_A_GIB[mode]
    gib = point.world / 2**30
    return 0.5 + max(budget, gib * (padded * point.padded_bytes + plain * point.world * point.mean_bytes))
