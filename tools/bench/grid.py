# SPDX-License-Identifier: MIT
"""What is measured: the points, and the sizes and shapes at each.

world W · rank r · n_r rows of rank r along dim · ROW_BYTES a row, whatever the dim
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Direction = Literal["forward", "backward", "both", "crossing", "all-to-all", "all-to-all, known", "each"]

KIB, MIB = 2**10, 2**20
ROW_BYTES = 256
FORMS = ("even", "ragged", "skewed")
DIRECTIONS: dict[Direction, str] = {
    "forward": "forward",
    "backward": "summed backward alone",
    "both": "forward + summed backward",
    "crossing": "forward, sizes known, by how much less the shortest rank has",
    "all-to-all": "rows to the ranks that need them, counts not known",
    "all-to-all, known": "rows to the ranks that need them, counts known",
    "each": "every rank's tensor, of any shape",
}
EXCHANGES: tuple[Direction, ...] = ("all-to-all", "all-to-all, known", "each")
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

    @property
    def counts(self) -> list[list[int]]:
        """`[s][r]`: how many rows go from rank s to rank r. Where it is skewed, rank 0 gets 16 times as many."""
        ranks = range(self.world)
        weights = {
            "even": [[1 for _ in ranks] for _ in ranks],
            "ragged": [[1 + (s + 2 * r) % 4 for r in ranks] for s in ranks],
            "skewed": [[1 if r else 16 for r in ranks] for _ in ranks],
        }[self.form]
        total = self.world * self.mean_bytes // ROW_BYTES
        whole = sum(map(sum, weights))
        return [[total * weight // whole for weight in row] for row in weights]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Every rank's shape, where ranks differ in both sizes."""
        widths = [16 * (1 + rank % 3) for rank in range(self.world)]
        return [(max(1, rows * ROW_BYTES // 4 // width), width) for rows, width in zip(self.sizes, widths, strict=True)]

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


def full_grid(worlds: Sequence[int]) -> list[Point]:
    """Every point: a few with 16 ranks, to show how time grows; then small worlds first, small tensors first."""
    many = [(world, size) for world in worlds if world not in LARGEST for size in (4 * KIB, 256 * KIB)]
    return [Point(world, "ragged", size, 0, direction) for world, size in many for direction in ("forward", "both")] + [
        Point(world, form, size, dim, direction)
        for world in worlds
        if world in LARGEST
        for size in (4 * KIB, 64 * KIB, 256 * KIB, LARGEST[world])
        for form in FORMS
        for dim in (0, 1)
        if (dim, size) != (1, 64 * KIB)
        for direction in ("forward", "backward", "both")
    ]


def quick_grid(worlds: Sequence[int]) -> list[Point]:
    """A few points of every kind, without 16 ranks."""
    kinds = [("ragged", 4 * KIB, 0), ("even", 256 * KIB, 0), ("skewed", 256 * KIB, 1)]
    small = [world for world in worlds if world in LARGEST]
    return [Point(world, *kind, direction) for world in small for kind in kinds for direction in ("forward", "both")]


def crossing_grid(worlds: Sequence[int]) -> list[Point]:
    """From even to very uneven: where padding stops being faster than one message a rank."""
    forms, sizes = [f"{step}/16" for step in (0, 1, 2, 4, 8, 12, 15)], (64 * KIB, MIB)
    pairs = [(world, size) for world in worlds if world in LARGEST for size in sizes]
    return [Point(world, form, size, 0, "crossing") for world, size in pairs for form in forms]


def exchange_grid(worlds: Sequence[int]) -> list[Point]:
    """All-to-all from 4 KiB to 4 MiB a rank, counts known from 64 KiB, and tensors of any shape."""
    sizes = (4 * KIB, 64 * KIB, 256 * KIB, 4 * MIB)
    small = [world for world in worlds if world in LARGEST]
    points = [Point(world, form, size, 0, "all-to-all") for world in small for size in sizes for form in FORMS]
    points += [
        Point(world, form, size, 0, "all-to-all, known") for world in small for size in sizes[1:] for form in FORMS
    ]
    return points + [Point(world, "ragged", size, 0, "each") for world in small for size in (4 * KIB, 256 * KIB, MIB)]
