# SPDX-License-Identifier: MIT
"""Sizes as plain ints, as the LongTensor that callers expect, and what can be read off them."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import TypeAlias

import torch
from einops import rearrange
from torch import Tensor

from ._errors import BadInputError
from ._world import Group, is_compiling, rank_and_world_or_alone

Sizes: TypeAlias = Sequence[int] | Tensor


def ints_of(sizes: Iterable[int] | Tensor) -> tuple[int, ...]:
    """Sizes as a tuple of ints. TypeError or ValueError for anything but a row of whole numbers."""
    if not isinstance(sizes, Tensor):
        return tuple(sizes) if is_compiling() else tuple(map(index, sizes))
    remembered = getattr(sizes, "_remembered_ints", None)
    if remembered is not None and remembered[1] == sizes._version:
        return tuple(remembered[0])
    is_whole = not (sizes.is_floating_point() or sizes.is_complex() or sizes.dtype == torch.bool)
    if sizes.ndim != 1 or not is_whole or sizes.is_meta or sizes.layout != torch.strided:
        msg = f"a {sizes.dtype} tensor of shape {tuple(sizes.shape)}, {sizes.layout} on {sizes.device}"
        raise TypeError(msg)
    return tuple(sizes.tolist())


def sizes_tensor(sizes: Sizes, device: torch.device) -> Tensor:
    """Sizes as a LongTensor `(world,)` on `device`, made without waiting for the device.

    Off the CPU the tensor remembers its ints while nobody writes to it, so that passing it back
    costs no device-to-host copy. On the CPU reading it anew is as cheap, and always right.

    >>> sizes_tensor((3, 0, 2), torch.device("cpu"))
    tensor([3, 0, 2])
    """
    if isinstance(sizes, Tensor):
        return sizes.to(device)
    if is_compiling():
        return torch.tensor(sizes, dtype=torch.long, device=device)
    pinned = device.type == "cuda" and torch.cuda.is_available()
    host = torch.tensor(sizes, dtype=torch.long, device="cpu", pin_memory=pinned)
    if device.type == "cpu":
        return host
    tensor = host.to(device, non_blocking=True)
    if not tensor.is_inference():
        tensor._remembered_ints = (tuple(sizes), tensor._version)  # type: ignore[attr-defined]
    return tensor


def rows_of(rank: int, sizes: Sequence[int]) -> slice:
    """Where a rank's rows are in the gathered tensor."""
    start = sum(sizes[:rank])
    return slice(start, start + sizes[rank])


def select_rows(gathered: Tensor, dim: int, rows: slice | Tensor) -> Tensor:
    """The rows of a gathered tensor that lie in a slice, a view, or that a LongTensor names, a copy.

    >>> select_rows(torch.arange(5), 0, slice(3, 5))
    tensor([3, 4])
    """
    if isinstance(rows, Tensor):
        return gathered.index_select(dim, rows.to(gathered.device))
    return gathered.narrow(dim, rows.start, rows.stop - rows.start)


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

    def __init__(self, sizes: Sizes, *, rank: int | None = None, group: Group = None) -> None:
        try:
            self.sizes = ints_of(sizes)
        except (TypeError, ValueError) as error:
            raise BadInputError(f"sizes must be one whole number a rank, got {sizes!r}") from error
        world = len(self.sizes)
        if rank is None:
            rank, world = rank_and_world_or_alone(group)
        if not 0 <= rank < len(self.sizes) == world:
            raise BadInputError(f"rank {rank} of {world} has no place among {len(self.sizes)} sizes {self.sizes}")
        self.rank = rank

    def __repr__(self) -> str:
        return f"RowLayout({self.sizes}, rank={self.rank})"

    @property
    def rows(self) -> slice:
        """This rank's rows: the k-th local row is row `rows.start + k` of the gathered tensor."""
        return rows_of(self.rank, self.sizes)

    def own(self, gathered: Tensor, dim: int = 0) -> Tensor:
        """This rank's part of a gathered tensor, a view: `(… sum(sizes) …) -> (… sizes[rank] …)`."""
        if gathered.shape[dim] != sum(self.sizes):
            shape = tuple(gathered.shape)
            raise BadInputError(f"sizes {self.sizes} add up to {sum(self.sizes)}, not to dim {dim} of shape {shape}")
        return select_rows(gathered, dim, self.rows)

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
