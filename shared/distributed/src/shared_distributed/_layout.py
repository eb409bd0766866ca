# SPDX-License-Identifier: MIT
"""Sizes as plain ints, and what can be read off them."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from einops import rearrange
from torch import Tensor

from ._errors import BadInputError
from ._world import _is_compiling

Sizes: TypeAlias = Sequence[int] | Tensor


def ints_of(sizes: Iterable[int] | Tensor) -> tuple[int, ...]:
    """Sizes as a tuple of ints; torch's or Python's own error for anything but a row of whole numbers."""
    given = sizes.tolist() if isinstance(sizes, Tensor) else sizes
    return tuple(given) if _is_compiling() else tuple(map(index, given))


class RowLayout:
    """Which rows of a gathered tensor came from which rank.

        sizes (3, 0, 2)  ->  row      0 1 2 3 4
                             rank     0 0 0 2 2

    >>> layout = RowLayout((3, 0, 2), rank=2)
    >>> layout.rows
    slice(3, 5, None)
    >>> layout.ranks().tolist()
    [0, 0, 0, 2, 2]
    >>> layout.mask().tolist()
    [[True, True, True], [False, False, False], [True, True, False]]
    >>> layout.own(torch.arange(5.0)).tolist()
    [3.0, 4.0]

    `rank` is this process's rank in `group` unless it is given.
    """

    def __init__(self, sizes: Sizes, *, rank: int | None = None, group: Any = None) -> None:
        try:
            self.sizes = ints_of(sizes)
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadInputError(f"sizes must be one whole number a rank, got {sizes!r}") from error
        world = len(self.sizes)
        if rank is None:
            grouped = dist.is_available() and dist.is_initialized()
            rank, world = (dist.get_rank(group), dist.get_world_size(group)) if grouped else (0, 1)
        if not 0 <= rank < len(self.sizes) == world:
            raise BadInputError(f"rank {rank} of {world} has no place among {len(self.sizes)} sizes {self.sizes}")
        self.rank = rank

    def __repr__(self) -> str:
        return f"RowLayout({self.sizes}, rank={self.rank})"

    @property
    def rows(self) -> slice:
        """This rank's rows: the k-th local row is row `rows.start + k` of the gathered tensor."""
        start = sum(self.sizes[: self.rank])
        return slice(start, start + self.sizes[self.rank])

    def own(self, gathered: Tensor, dim: int = 0) -> Tensor:
        """This rank's part of a gathered tensor, a view: `(… sum(sizes) …) -> (… sizes[rank] …)`."""
        if gathered.shape[dim] != sum(self.sizes):
            shape = tuple(gathered.shape)
            raise BadInputError(f"sizes {self.sizes} add up to {sum(self.sizes)}, not to dim {dim} of shape {shape}")
        return gathered.narrow(dim, self.rows.start, self.sizes[self.rank])

    def ranks(self, device: torch.device | str | None = None) -> Tensor:
        """The rank that each gathered row came from: LongTensor `(sum(sizes),)`."""
        ranks = torch.arange(len(self.sizes), device=device)
        repeats = torch.tensor(self.sizes, dtype=torch.long, device=device)
        return ranks.repeat_interleave(repeats, output_size=sum(self.sizes))

    def mask(self, length: int | None = None, device: torch.device | str | None = None) -> Tensor:
        """True where a `(world, length)` padded layout holds a real row; length: the longest rank's."""
        length = max(self.sizes) if length is None else length
        sizes = torch.tensor(self.sizes, dtype=torch.long, device=device)
        return rearrange(torch.arange(length, device=device), "row -> 1 row") < rearrange(sizes, "rank -> rank 1")
