# SPDX-License-Identifier: MIT
"""Where rows are: in a message behind a header, and in an output. Arithmetic and views; nothing is sent here.

A block is what one rank sends: its header, the numbers that its operation sends with it, then the rows of each of its
tensors, each at a multiple of 16 bytes.
"""

from collections.abc import Sequence
from math import prod
from struct import Struct
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes: where a tensor of any dtype can start
CLAIM = Struct("=6q")  # a header: a rank's claim, where its numbers end, and where its rows end; 0 if none were sent
HEADER = CLAIM.size  # bytes
NUMBER = 8  # bytes


class Block(NamedTuple):
    """Where a rank's rows are in its block."""

    starts: list[int]  # of each tensor, in bytes
    end: int


def block_of(row_bytes: Sequence[int], size: int, numbers: int) -> Block:
    """The block of a rank with so many numbers, and `size` rows in each tensor, whose rows have so many bytes."""
    starts = []
    end = aligned(HEADER + NUMBER * numbers)
    for nbytes in row_bytes:
        starts.append(end)
        end = aligned(end + nbytes * size)
    return Block(starts, end)


def aligned(nbytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def row_elements(x: Tensor, dim: int) -> int:
    """How many elements a row has. `dim` may be negative."""
    return prod(x.shape[:dim]) * prod(x.shape[dim:][1:])


def row_bytes(x: Tensor, dim: int) -> int:
    """How many bytes a row has."""
    return row_elements(x, dim) * x.element_size()


def resized(x: Tensor, dim: int, size: int) -> list[int]:
    """The shape of `x` with another size along `dim`."""
    return [*x.shape[:dim], size, *x.shape[dim + 1 :]]


def write_rows(x: Tensor, memory: Tensor, start: int) -> None:
    """The rows of `x` into bytes of memory."""
    nbytes = x.numel() * x.element_size()
    memory.narrow(0, start, nbytes).view(x.dtype).view(x.shape).copy_(x.detach())


def read_rows(
    message: Tensor,
    block_starts: Sequence[int],
    sizes: Sequence[int],
    xs: Sequence[Tensor],
    dim: int,
    numbers: int,
) -> list[list[Tensor]]:
    """Every rank's rows of every tensor, `[tensor][rank]`: flat views of a message in which the blocks start there."""
    lengths = [row_bytes(x, dim) for x in xs]
    rows: list[list[Tensor]] = [[] for _ in xs]
    for block_start, size in zip(block_starts, sizes, strict=True):
        starts, _ = block_of(lengths, size, numbers)
        for i, x in enumerate(xs):
            part = message.narrow(0, block_start + starts[i], lengths[i] * size)
            rows[i].append(part.view(x.dtype))
    return rows


def join_pieces(
    parts: Sequence[Tensor], x: Tensor, dim: int, sent_by_rank: Sequence[Sequence[int]], rank: int
) -> Tensor:
    """What every rank sent to this one, from all rows of every rank, of which `sent_by_rank[s][r]` go from s to r."""
    is_byte = x.element_size() == 1  # torch.cat knows few dtypes of one byte
    pieces = []
    for part, sent in zip(parts, sent_by_rank, strict=True):
        rows = part.view(resized(x, dim, sum(sent)))
        piece = rows.narrow(dim, sum(sent[:rank]), sent[rank])
        pieces.append(piece.view(torch.uint8) if is_byte else piece)
    return torch.cat(pieces, dim).view(x.dtype)


def join(parts: Sequence[Tensor], x: Tensor, dim: int, sizes: Sequence[int], gathered: Tensor) -> None:
    """Every rank's flat rows into the output. They have the shape of `x` but for their number."""
    if x.element_size() == 1:  # torch.cat knows few dtypes of one byte
        parts = [part.view(torch.uint8) for part in parts]
        gathered = gathered.view(torch.uint8)
    if is_in_rank_order(x, dim):
        torch.cat(parts, out=gathered.view(-1))
        return
    shaped = [part.view(resized(x, dim, size)) for part, size in zip(parts, sizes, strict=True)]
    torch.cat(shaped, dim, out=gathered)


def is_in_rank_order(x: Tensor, dim: int) -> bool:
    """Whether a gathered tensor is one rank's rows after the other's in memory, as it always is along dim 0."""
    return prod(x.shape[:dim]) == 1


def in_rank_order(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """All elements of `x`, flat and contiguous, the rows of one rank after those of the other."""
    if is_in_rank_order(x, dim) and x.is_contiguous() and not x.is_neg():
        return x.as_strided((x.numel(),), (1,))  # view(-1) would keep the odd stride of a single element
    flat = x.new_empty(x.numel())
    start = 0
    for part in x.split(sizes, dim):
        flat.narrow(0, start, part.numel()).view(part.shape).copy_(part)
        start += part.numel()
    return flat


def as_bytes(x: Tensor) -> Tensor:
    """A contiguous tensor's memory."""
    return x.view(-1).view(torch.uint8)


def dtype_of_sums(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are taken: at least 32 bits wide, and one that every backend can add."""
    if not dtype.is_floating_point:
        return torch.int64
    if torch.finfo(dtype).bits < 32:
        return torch.float32
    return dtype
