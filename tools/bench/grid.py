# SPDX-License-Identifier: MIT
"""What is measured: the grid of points, and the sizes and shapes at each.

world W · rank r · n_r rows of rank r along dim · ROW_BYTES a row, whatever the dim
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Case = Literal["even", "mild", "skew", "one-empty"]
Mode = Literal["forward", "backward", "sum", "local"]

CASES: tuple[Case, ...] = ("even", "mild", "skew", "one-empty")
MODES: dict[Mode, str] = {
    "forward": "forward",
    "backward": "summed backward alone",
    "sum": "forward + summed backward",
    "local": "forward + own-slice backward",
}
KIB, MIB = 2**10, 2**20
ROW_BYTES = 256
WORLD_SIZES = (2, 4, 8)
MEAN_BYTES = (4 * KIB, 256 * KIB, 4 * MIB, 32 * MIB)
LARGEST = 32 * MIB
LARGEST_UP_TO_WORLD = 4  # at 8 ranks the padding of the skewed case alone would need 15 GiB


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
    """A handful of points of every kind."""
    points = [Point(0, "skew", 4 * KIB, 0), Point(0, "even", 256 * KIB, 0), Point(0, "skew", 256 * KIB, 1)]
    large = Point(0, "mild", 4 * MIB, 0)  # not at 8 ranks: padding takes seconds there
    return [point._replace(world=world) for world in worlds for point in [*points, *([large] if world < 8 else [])]]


def steps(points: Sequence[Point], modes: Sequence[Mode]) -> list[tuple[Point, Mode]]:
    """What to measure, in order. An own slice is a view: where bytes decide it would only repeat "forward"."""
    return [(point, mode) for point in points for mode in modes if mode != "local" or point.mean_bytes < 4 * MIB]
