# SPDX-License-Identifier: MIT
"""What the ranks should see, computed in one process from the same rule that the ranks use.

Every value depends on its rank and its position, every upstream gradient on the rank that holds it
and its position, so that a wrong order, slice, scale or sum shows. All are small whole numbers: sums
over eight ranks are exact in every dtype tested, and results are compared bit for bit.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from shared_distributed_tools.ranks.oracle import covering
from shared_distributed_tools.ranks.oracle import upstream as upstream
from shared_distributed_tools.ranks.oracle import values as values

ALL_DTYPES = ("float32", "bfloat16", "float64", "bool", "int16", "int64", "complex64", "float8_e4m3fn")
DTYPES = tuple(name for name in ALL_DTYPES if hasattr(torch, name))  # an old torch has no fp8
DIMS = (0, 1, -1, -2)
SIZES = ("equal", "ragged", "one empty", "all empty")
GIVEN = ("no", "list", "tensor")  # whether sizes are passed in
OTHER_DIMS = (2, 3, 4)  # the shape of a rank's tensor, but for the gathered dim


class Case(NamedTuple):
    """One call of a gather, the same on every rank but for the rank's own size."""

    sizes: tuple[int, ...]
    dim: int = 0
    dtype: str = "float32"
    given: str = "no"
    contiguous: bool = True
    other: tuple[int, ...] = OTHER_DIMS

    def shape(self, size: int) -> tuple[int, ...]:
        """The shape with `size` at the gathered dim."""
        shape = list(self.other)
        shape[self.dim] = size
        return tuple(shape)


class Result(NamedTuple):
    """What a rank got."""

    gathered: Tensor
    contiguous: bool
    sizes: object
    gradient: Tensor | None


def sizes_of(kind: str, world: int) -> tuple[int, ...]:
    """The sizes of a world: `ragged` has no two neighbours alike."""
    ragged = [(3 * rank + 2) % 5 + 1 for rank in range(world)]
    if kind == "equal":
        return (3,) * world
    if kind == "one empty":
        ragged[world // 2] = 0
    return (0,) * world if kind == "all empty" else tuple(ragged)


def cases_of(world: int, together: int, seed: str) -> list[Case]:
    """Cases in which any two, or three, options meet: dim, kind of sizes, dtype, sizes given or not, contiguous."""
    axes = (DIMS, SIZES, DTYPES, GIVEN, (True, False))
    return [
        Case(sizes_of(kind, world), dim, dtype, given, contiguous)
        for dim, kind, dtype, given, contiguous in covering(axes, together, seed)
    ]


@lru_cache(maxsize=512)
def gathered(case: Case) -> Tensor:
    """What every rank should hold."""
    parts = [values(rank, case.shape(size), case.dtype) for rank, size in enumerate(case.sizes)]
    return torch.cat(parts, case.dim)


def gradient(case: Case, rank: int, how: str) -> Tensor:
    """A rank's gradient: its slice of its own upstream (`local`), or of the sum over ranks (`sum`)."""
    arriving = _summed(case) if how == "sum" else upstream(rank, case.shape(sum(case.sizes)), case.dtype)
    return arriving.narrow(case.dim, sum(case.sizes[:rank]), case.sizes[rank])


@lru_cache(maxsize=512)
def _summed(case: Case) -> Tensor:
    arriving = [upstream(rank, case.shape(sum(case.sizes)), case.dtype) for rank in range(len(case.sizes))]
    wide = torch.float32 if arriving[0].element_size() < 4 else arriving[0].dtype
    return torch.stack([each.to(wide) for each in arriving]).sum(0).to(arriving[0].dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit: dtype, shape and values."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
