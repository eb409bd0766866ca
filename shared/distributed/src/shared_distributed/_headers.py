# SPDX-License-Identifier: MIT
"""The first round: every rank's header, and its rows behind it where they fit.

Over gloo on Linux, header and rows are one message, as long as they are: there a message may be shorter than what its
receiver has room for, so that ranks in different calls still meet. Elsewhere every rank has a slot beside its header,
whose length depends on the number of ranks alone.

A header is a hash of the call, a size, flags, and where the rows behind it end: 0 if they do not fit or may not come.
"""

import sys
from collections.abc import Callable, Iterable
from ctypes import c_char, memmove
from functools import partial
from struct import Struct
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ._transports import HEADERS, SMALL, as_bytes, through_first
from ._world import _long_tensor

SLOTS = 64 << 10  # bytes of all slots together
ROOM = SMALL  # bytes of all messages together
ALIGNED = 16  # bytes: where a tensor of any dtype can start
_INTS = Struct("=4q")  # a header

Spans: TypeAlias = list[tuple[int, int]]  # from where to where, in bytes
Arrived: TypeAlias = list[Callable[[Tensor], None]]  # for each tensor, what writes all ranks' rows into an output


class Mail:
    """What an exchange over gloo is written into and read from, made once a group: a block for each rank, and all
    blocks one behind the other in one message.
    """

    # gloo's TCP reads what comes; on macOS and Windows it has libuv, which reads as much as the receiver has room for
    is_possible = sys.platform == "linux"

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world, self.stride = rank, world, _INTS.size + ROOM // world // ALIGNED * ALIGNED
        memory = torch.empty(2 * world * self.stride, dtype=torch.uint8, device="cpu")
        self.address, self.half = memory.data_ptr(), world * self.stride
        self.bytes = memoryview((c_char * len(memory)).from_address(self.address)).cast("B")
        self.blocks, self.message = memory[: self.half].split(self.stride), memory[self.half :]

    def exchange(
        self, header: list[int], xs: Iterable[Tensor], widths: list[int], dim: int, group: Any
    ) -> tuple[list[list[int]], Arrived]:
        """Every rank's header; and rows, if every rank's came. xs: this rank's, of so many bytes a row."""
        start = self.rank * self.stride
        spans, end = _fitting(widths, header[1], self.stride)
        for x, ((at, stop),) in zip(xs, spans, strict=False):
            rows = (x.detach().movedim(int(dim), 0) if dim else x).resolve_conj().resolve_neg().contiguous()
            memmove(self.address + start + at, rows.data_ptr(), stop - at)
        _INTS.pack_into(self.bytes, start, *header, end)
        own, found, starts = self.blocks[self.rank][: end or _INTS.size], [], []

        def complete() -> Tensor:
            """The message, as long as it is."""
            if self.rank == 0:
                self.join()
            at = self.half
            for _ in range(self.world):
                starts.append(at)
                found.append(_INTS.unpack_from(self.bytes, at))
                at += found[-1][3] or _INTS.size
            return self.message[: at - self.half]

        through_first(HEADERS, own, self.blocks, self.message, group, complete)
        return _opened(found, starts, widths, self.read)

    def join(self) -> None:
        """All blocks into the message; if there are no rows in one of them, headers alone."""
        blocks, at = range(0, self.half, self.stride), self.half
        headers = [_INTS.unpack_from(self.bytes, block) for block in blocks]
        come = all(header[3] for header in headers)
        for block, header in zip(blocks, headers, strict=True):
            length = header[3] if come else _INTS.size
            self.bytes[at : at + length] = self.bytes[block : block + length]
            if not come:
                _INTS.pack_into(self.bytes, at, *header[:3], 0)
            at += length

    def read(self, spans: Spans, rows: Tensor) -> None:
        """Rows of all ranks, from where they are."""
        assert sum(end - at for at, end in spans) == rows.numel() * rows.element_size()  # no other memory is written to
        to = rows.data_ptr()
        for at, end in spans:
            memmove(to, self.address + at, end - at)
            to += end - at


def in_slots(
    header: list[int], xs: Iterable[Tensor], widths: list[int], dim: int, place: Any, device: torch.device, spread: Any
) -> tuple[list[list[int]], Arrived]:
    """The same in blocks of one length, on the device of the rows; `spread` moves them."""
    rank, world = place.rank, place.world
    stride = _INTS.size + SLOTS // world // ALIGNED * ALIGNED
    spans, end = _fitting(widths, header[1], stride)
    ints = _long_tensor([*header, end], device)
    blocks = ints.new_zeros((world, stride // 8))
    headers, flat = blocks.narrow(1, 0, 4), as_bytes(blocks)
    headers.copy_(ints)  # into every block: over a fake group, which moves nothing, all ranks then seem alike
    for x, ((at, stop),) in zip(xs, spans, strict=False):
        rows = x.detach().movedim(int(dim), 0)  # int: torch wants no bool
        flat.narrow(0, rank * stride + at, stop - at).view(x.dtype).view(rows.shape).copy_(rows)
    spread(flat, [stride] * world)

    def read(spans: Spans, rows: Tensor) -> None:
        size, last, cuts = rows.element_size(), 0, []
        for at, end in spans:
            cuts += [(at - last) // size, (end - at) // size]
            last = end
        cuts.append((len(flat) - last) // size)
        torch.cat(flat.view(rows.dtype).split(cuts)[1::2], out=rows.view(-1))

    return _opened(headers.tolist(), range(0, len(flat), stride), widths, read)


def _fitting(widths: list[int], size: int, stride: int) -> tuple[list[Spans], int]:
    """Where in its block a rank puts so many rows of these widths, and where they end; 0 if they do not fit."""
    spans, (end,) = _spans(widths, [size], [0])
    return (spans, end) if widths and end <= stride else ([], 0)


def _spans(widths: list[int], sizes: Iterable[int], starts: Iterable[int]) -> tuple[list[Spans], list[int]]:
    """For each tensor, where every rank's rows of it are in blocks that start there; and where the blocks end."""
    spans, ats = [], [start + _INTS.size for start in starts]
    for width in widths:
        ends = [at + width * size for at, size in zip(ats, sizes, strict=True)]
        spans.append(list(zip(ats, ends, strict=True)))
        ats = [-(-end // ALIGNED) * ALIGNED for end in ends]
    return spans, ats


def _opened(
    found: Any, starts: Iterable[int], widths: list[int], read: Callable[[Spans, Tensor], None]
) -> tuple[list[list[int]], Arrived]:
    """The headers, and for each tensor what reads it, if every rank's rows came."""
    spans = _spans(widths, [header[1] for header in found], starts)[0] if all(header[3] for header in found) else []
    return [header[:3] for header in found], [partial(read, of_x) for of_x in spans]
