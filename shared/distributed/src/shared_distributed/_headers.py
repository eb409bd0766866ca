# SPDX-License-Identifier: MIT
"""The first round: every rank's header, and its rows behind it where they fit.

Over gloo's TCP, header and rows are one message, as long as they are: there a message may be shorter than what its
receiver has room for, so that ranks in different calls still meet. Elsewhere every rank has a slot beside its header,
whose length depends on the number of ranks alone.

A header is a hash of the call, a size, flags, and where the rows behind it end: 0 if they do not fit or may not come.
"""

import os
import sys
from collections.abc import Sequence
from ctypes import c_char, memmove
from struct import Struct
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ._transports import HEADERS, SMALL, as_bytes, through_first
from ._world import _long_tensor

SLOTS = 64 << 10  # bytes of all slots together
ROOM = SMALL  # bytes of all messages together
MEMORY = 32 << 20  # bytes on the first rank for messages that are longer than a share
ALIGNED = 16  # bytes: where a tensor of any dtype can start
_INTS = Struct("=4q")  # a header

Arrived: TypeAlias = list[tuple[Tensor, ...]]  # for each tensor, every rank's rows, flat


def may_be_short() -> bool:
    """Whether gloo's messages may be shorter than expected: over TCP it reads what comes. libuv, which it has on macOS
    and Windows, reads as much as the receiver has room for; of InfiniBand it is not known.
    """
    return sys.platform == "linux" and os.environ.get("GLOO_DEVICE_TRANSPORT", "TCP") in ("LINUX", "TCP", "TCP_TLS")


class Mail:
    """What an exchange over gloo is written into and read from, made once a group: a block for this rank, on the first
    for each, and all blocks one behind the other in one message.
    """

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.share = _INTS.size + ROOM // world // ALIGNED * ALIGNED  # what every rank may send, and all fit
        self.stride = max(self.share, min(ROOM, MEMORY // world // ALIGNED * ALIGNED))  # what one may send
        self.half, self.room = (1 if rank else world) * self.stride, world * self.share
        memory = torch.empty(self.half + self.room, dtype=torch.uint8, device="cpu")
        self.address = memory.data_ptr()
        self.bytes = memoryview((c_char * len(memory)).from_address(self.address)).cast("B")
        self.blocks, self.message = memory[: self.half].split(self.stride), memory[self.half :]
        self.fitting: set[tuple[int, ...]] = set()  # widths for which longer messages had room, the last time

    def exchange(
        self, header: list[int], xs: Sequence[Tensor], widths: list[int], group: Any
    ) -> tuple[list[Any], Arrived]:
        """Every rank's header; and rows, if every rank's came. xs: this rank's, of so many bytes a row.

        Rows that are more than a rank's share come along where all had room the last time.
        """
        like = tuple(widths)
        starts, end = _placed(widths, header[1], self.stride if like in self.fitting else self.share)
        for x, width, at in zip(xs, widths, starts, strict=False):
            rows = x if x.is_contiguous() else x.detach().contiguous()
            rows = rows.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else rows
            memmove(self.address + at, rows.data_ptr(), width * header[1])
        _INTS.pack_into(self.bytes, 0, *header, end)
        found: list[tuple[int, ...]] = []
        ats = [0]

        def complete() -> Tensor:
            """The message, as long as it is."""
            if self.rank == 0:
                self.join()
            for _ in range(self.world):
                found.append(_INTS.unpack_from(self.bytes, self.half + ats[-1]))
                ats.append(ats[-1] + (found[-1][3] or _INTS.size))
            return self.message.narrow(0, 0, ats.pop())

        through_first(
            HEADERS, self.blocks[0].narrow(0, 0, end or _INTS.size), self.blocks, self.message, group, complete
        )
        headers, arrived = _rows_of(found, ats, widths, xs, self.message)
        ends = [end or _placed(widths, size, self.stride)[1] for _, size, _, end in found]
        if not all(ends) or sum(ends) > self.room:
            self.fitting.discard(like)
        elif max(ends) > self.share:
            if len(self.fitting) > 1000:
                self.fitting.clear()
            self.fitting.add(like)
        return headers, arrived

    def join(self) -> None:
        """All blocks into the message; if there are no rows in one of them, or too many in all, headers alone."""
        blocks, at = range(0, self.half, self.stride), self.half
        ends = [_INTS.unpack_from(self.bytes, block)[3] for block in blocks]
        come = all(ends) and sum(ends) <= self.room
        for block, end in zip(blocks, ends, strict=True):
            length = end if come else _INTS.size
            self.bytes[at : at + length] = self.bytes[block : block + length]
            if not come:
                _INTS.pack_into(self.bytes, at, *_INTS.unpack_from(self.bytes, block)[:3], 0)
            at += length


def in_slots(
    header: list[int], xs: Sequence[Tensor], widths: list[int], place: Any, device: torch.device, spread: Any
) -> tuple[list[Any], Arrived]:
    """The same in blocks of one length, on the device of the rows; `spread` moves them."""
    stride = _INTS.size + SLOTS // place.world // ALIGNED * ALIGNED
    starts, end = _placed(widths, header[1], stride)
    ints = _long_tensor([*header, end], device)
    blocks = ints.new_zeros((place.world, stride // 8))
    headers, flat = blocks.narrow(1, 0, 4), as_bytes(blocks)
    headers.copy_(ints)  # into every block: over a fake group, which moves nothing, all ranks then seem alike
    for x, width, at in zip(xs, widths, starts, strict=False):
        rows = flat.narrow(0, place.rank * stride + at, width * header[1])
        rows.view(x.dtype).view(x.shape).copy_(x.detach())
    spread(flat, [stride] * place.world)
    return _rows_of(headers.tolist(), range(0, flat.numel(), stride), widths, xs, flat)


def _placed(widths: list[int], size: int, room: int) -> tuple[list[int], int]:
    """Where in its block a rank puts so many rows of these widths, and where they end; 0 if they do not fit."""
    starts, at = [], _INTS.size
    for width in widths:
        starts.append(at)
        at = -(-(at + width * size) // ALIGNED) * ALIGNED
    return (starts, at) if widths and at <= room else ([], 0)


def _rows_of(
    found: Sequence[tuple[int, ...]], blocks: Sequence[int], widths: list[int], xs: Sequence[Tensor], whole: Tensor
) -> tuple[list[Any], Arrived]:
    """The headers, and each tensor's rows in the blocks that start there, if every rank's came."""
    arrived: Arrived = []
    ats = [block + _INTS.size for block in blocks]
    same_call = len({header[0] for header in found}) == 1  # if not, rows have other lengths
    for x, width in zip(xs, widths, strict=True) if same_call and all(header[3] for header in found) else ():
        cuts: list[int] = []
        itemsize, last = x.element_size(), 0
        for rank, at in enumerate(ats):
            end = at + width * found[rank][1]
            cuts += ((at - last) // itemsize, (end - at) // itemsize)
            last, ats[rank] = end, -(-end // ALIGNED) * ALIGNED
        cuts.append((whole.numel() - last) // itemsize)
        rows = whole if itemsize == 1 else whole.view(x.dtype)  # bytes, as `gather` wants them
        arrived.append(rows.split_with_sizes(cuts)[1::2])
    return [header[:3] for header in found], arrived
