# SPDX-License-Identifier: MIT
"""Sizes as plain ints, and what can be read off them."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import TypeAlias

import torch
from einops import rearrange
from torch import Tensor

from ._errors import BadInputError
from ._ranks import _is_compiling, _long_tensor

Sizes: TypeAlias = Sequence[int] | Tensor


def ints_of(sizes: Iterable[int] | Tensor) -> tuple[int, ...]:
    """Sizes as a tuple of ints; torch's or Python's own error for anything but a row of whole numbers."""
    given = sizes.tolist() if isinstance(sizes, Tensor) else sizes
    return tuple(given) if _is_compiling() else tuple(map(index, given))


class RowLayout(tuple[int, ...]):
    """Every rank's size, as a tuple of ints that knows which of them is this rank's.

    >>> sizes = RowLayout((3, 0, 2), rank=2)
    >>> sizes.start, sizes.rows, sizes.total, sizes.world, sizes.ddp_scale
    (3, slice(3, 5, None), 5, 3, 0.6)
    >>> sizes.ranks().tolist(), sizes.own(torch.arange(5.0)).tolist()
    ([0, 0, 0, 2, 2], [3.0, 4.0])

    `all_gather` returns one. It can be copied and pickled, since it holds no process group; to save it, `tuple(sizes)`.
    """

    def __new__(cls, sizes: Iterable[int] | Tensor, *, rank: int | None = None) -> "RowLayout":
        self = super().__new__(cls, ints_of(sizes))
        self._rank = getattr(sizes, "_rank", None) if rank is None else rank
        return self

    @property
    def rank(self) -> int:
        """This rank, counted within the group. BadInputError where it is not known."""
        if not any(self._rank == rank for rank in range(len(self))):  # Dynamo cannot look for a symbol in a range
            raise BadInputError(f"rank {self._rank} has no place among sizes {self}: pass RowLayout(sizes, rank=…)")
        return self._rank

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self)

    @property
    def total(self) -> int:
        """How many rows all ranks have together."""
        return sum(self)

    @property
    def start(self) -> int:
        """Where this rank's rows begin: its k-th row is row `start + k` of the gathered tensor."""
        return sum(self[: self.rank])

    @property
    def rows(self) -> slice:
        """This rank's rows of the gathered tensor."""
        return slice(self.start, self.start + self[self.rank])

    @property
    def ddp_scale(self) -> float:
        """`world / max(total, 1)`: a loss summed over own rows, times this, is under DDP the mean over all rows."""
        return self.world / max(self.total, 1)

    def own(self, gathered: Tensor, dim: int = 0) -> Tensor:
        """This rank's part of a gathered tensor, a view: `(… total …) -> (… sizes[rank] …)`."""
        return gathered.split(tuple(self), dim)[self.rank]  # torch's own error where they do not add up

    def ranks(self, device: torch.device | str | None = None) -> Tensor:
        """The rank that each gathered row came from: LongTensor `(total,)`."""
        ranks = torch.arange(len(self), device=device)
        return ranks.repeat_interleave(_long_tensor(tuple(self), ranks.device), output_size=self.total)

    def mask(self, length: int | None = None, device: torch.device | str | None = None) -> Tensor:
        """True where a `(world, length)` padded layout holds a real row; length: the longest rank's."""
        rows = torch.arange(max(self) if length is None else length, device=device)
        return rearrange(rows, "row -> 1 row") < rearrange(_long_tensor(tuple(self), rows.device), "rank -> rank 1")
