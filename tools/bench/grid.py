# SPDX-License-Identifier: MIT
"""What is measured: the points, and the sizes and shapes at each.

world W · rank r · n_r rows of rank r along dim · ROW_BYTES a row, whatever the dim
"""

from collections.abc import Sequence
from itertools import product
from typing import Literal, NamedTuple, cast

Direction = Literal["forward", "backward", "both", "crossing"]

KIB, MIB = 2**10, 2**20
ROW_BYTES = 256
FORMS = ("even", "ragged", "skewed")
DIRECTIONS: dict[Direction, str] = {
    "forward": "forward",
    "backward": "summed backward alone",
    "both": "forward + summed backward",
    "crossing": "forward, sizes known: padding against real rows, by how much shorter the shortest rank is",
}
WORLDS = (2, 4, 8, 16)
LARGEST = {2: 4 * MIB, 4: 4 * MIB, 8: MIB}  # at 8 ranks, padding skewed rows takes half a second even so


class Point(NamedTuple):
    """One place on the grid. `mean_bytes` is the mean over ranks of what a rank gathers.

    form: "even"; "ragged", where the shortest rank has about half of the longest; "skewed", where one rank has 64
    times as much as any other; or "k/16", where sizes fall evenly and the shortest rank has k/16 less than the longest.
    """

    world: int
    form: str
    mean_bytes: int
    dim: int
    direction: Direction

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each rank along dim; at least one each."""
        ranks = range(self.world)
        if self.form in FORMS:
            weigh = {"even": lambda _: 1, "ragged": lambda r: 2 * self.world - r, "skewed": lambda r: 1 if r else 64}
            weights = [weigh[self.form](rank) for rank in ranks]
        else:
            weights = [16 * (self.world - 1) - int(self.form.removesuffix("/16")) * rank for rank in ranks]
        total = self.world * self.mean_bytes // ROW_BYTES
        rows = [max(1, total * weight // sum(weights)) for weight in weights]
        rows[0] += total - sum(rows)  # what rounding left over
        return tuple(rows)

    def shape(self, rows: int) -> tuple[int, ...]:
        """`(rows, 64)` for dim 0, `(4, rows, 16)` for dim 1: the same bytes in float32."""
        return (rows, 64) if self.dim == 0 else (4, rows, 16)

    @property
    def label(self) -> str:
        """The point in words."""
        size = bytes_in_words(self.mean_bytes)
        return f"{self.direction}, {self.world} ranks, {self.form}, {size} a rank, dim {self.dim}"


def bytes_in_words(count: int) -> str:
    """4 KiB, 32 MiB."""
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"


def _points(*axes: Sequence[object]) -> list[Point]:
    return [Point(*cast(tuple[int, str, int, int, Direction], place)) for place in product(*axes)]


def full_grid(worlds: Sequence[int]) -> list[Point]:
    """Every point; small worlds first, small tensors first. 16 ranks only show how time grows."""
    points = []
    for world in worlds:
        if world not in LARGEST:
            points += _points([world], ["ragged"], [4 * KIB, 256 * KIB], [0], ["forward", "both"])
            continue
        for size in (4 * KIB, 64 * KIB, 256 * KIB, LARGEST[world]):
            dims = [0] if size == 64 * KIB else [0, 1]
            points += _points([world], FORMS, [size], dims, ["forward", "backward", "both"])
    return points


def quick_grid(worlds: Sequence[int]) -> list[Point]:
    """A few points of every kind, without 16 ranks."""
    kinds = [("ragged", 4 * KIB, 0), ("even", 256 * KIB, 0), ("skewed", 256 * KIB, 1)]
    small = [world for world in worlds if world in LARGEST]
    return [Point(world, *kind, direction) for world in small for kind in kinds for direction in ("forward", "both")]


def crossing_grid(worlds: Sequence[int]) -> list[Point]:
    """From even to very uneven: where padding stops being faster than one message a rank."""
    forms = [f"{step}/16" for step in (0, 1, 2, 4, 8, 12, 15)]
    return _points([world for world in worlds if world in LARGEST], forms, [64 * KIB, MIB], [0], ["crossing"])
