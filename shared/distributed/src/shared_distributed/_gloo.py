# SPDX-License-Identifier: MIT
"""Over gloo on the CPU. Small messages go through the first rank, and bring their rows with the header.

| what                             | how                                       | ms, and other ways'                |
|----------------------------------|-------------------------------------------|------------------------------------|
| gathers up to 2 MiB in all       | through the first rank                    | 3.3, all-to-all 4.6, broadcasts 10 |
| larger gathers                   | a broadcast from each rank                | 15, first rank 14, all-to-all 18   |
| sums of up to 512 KiB on a rank  | through the first rank                    | 4.2, all-to-all 5.9, all-reduce 17 |
| larger sums                      | all-to-all, then added up on each rank    | 17, all-reduce 35                  |
| the same, if one rank owns most  | all-reduce                                | 0.7 times as long as all-to-all    |

Medians of 8 ranks on 2 cores, 64 KiB on each rank where the row says "up to", else 1 MiB. For small messages their
number decides: 2 (W - 1) through one rank, W (W - 1) from all to all, and those cross. Large gathers go straight from
rank to rank for the sake of networks: the first rank's link would carry all rows log2(W) times.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from struct import pack_into, unpack_from
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._agree import _Claim
from ._blocks import (
    ALIGNMENT,
    CLAIM,
    HEADER,
    NUMBER,
    as_bytes,
    block_of,
    dtype_of_sums,
    in_rank_order,
    read_rows,
    resized,
    row_bytes,
    row_elements,
    write_rows,
)
from ._call import Call
from ._faults import failures_named
from ._ranks import _Ranks
from ._usable import is_plain, refuse_batched

SMALL_GATHER = 2 << 20  # bytes of all ranks; twice as many with more than 8 ranks
SMALL_SUM = 4 << 20  # bytes that the first rank receives; from each rank no more than if there were eight
MOST_FOR_ONE_RANK = 16 << 20  # bytes that one rank receives of a sum; of more, if the others receive less, all-reduce
ROOM = 2 << 20  # bytes for the rows of all ranks that come with the headers
HEADERS, ROWS, SUMS = 1 << 30, 3 << 29, 7 << 28  # tags of messages to the first rank; plus 1: of its answers


def takes_short_messages() -> bool:
    """Whether a receiver of gloo's may expect more bytes than are sent, and may wait before its sender is connected.

    So it is with the TCP transport of Linux. libuv, on macOS and Windows, reads as much as the receiver has room for;
    of InfiniBand it is not known. With lazy connections a receiver blocks until its sender connects.
    """
    transport = os.environ.get("GLOO_DEVICE_TRANSPORT", "TCP")
    connects_lazily = os.environ.get("TORCH_GLOO_LAZY_INIT", "0").lower() not in ("", "0", "false", "n", "no", "off")
    return sys.platform == "linux" and transport in ("LINUX", "TCP", "TCP_TLS") and not connects_lazily


class Gloo(Call):
    """A call of ranks on the CPU, over gloo's TCP."""

    def exchange(self, claim: _Claim) -> list[list[int]]:
        """Every rank's claim; every rank's rows as well, if they fit into every rank's message."""
        if self.facts.buffers is None:
            self.facts.buffers = Buffers(self.rank, self.world)
        buffers = self.facts.buffers
        is_usable = claim.digest != 0
        xs = self.xs if is_usable and all(is_in_memory(x) for x in self.xs) else []
        block = buffers.write(claim, self.numbers, xs, self.dim)
        with failures_named("exchange of sizes", self.group):
            send_to_first(HEADERS, block, buffers.blocks, buffers.message, self.group)
            if self.rank == 0:
                buffers.join_blocks()
            headers, starts = buffers.read_headers()
            send_onward(HEADERS, buffers.message.narrow(0, 0, starts.pop()), self.group)

        claims = [header[:4] for header in headers]
        if len({digest for digest, *_ in claims}) > 1:
            return claims  # other ranks' numbers and rows have other lengths
        if self.numbers and headers[0][4] > HEADER:
            self.everyones_numbers = buffers.read_numbers(starts, len(self.numbers))
        if xs and all(end for *_, end in headers):
            sizes = [size for _, size, *_ in claims]
            self.arrived = read_rows(buffers.message, starts, sizes, xs, self.dim, len(self.numbers))
        return claims

    def exchange_words(self, words: str) -> list[str]:
        """Every rank's words."""
        with torch.inference_mode(False), failures_named("exchange of words", self.group):
            return _Ranks(None, self.group).exchange_words(words)

    def send_rows(self, rows: Tensor, parts: Sequence[Tensor]) -> list[Any]:
        """Small ones through the first rank; else a broadcast from each rank. As bytes, since gloo has few dtypes."""
        limit = SMALL_GATHER if self.world <= 8 else 2 * SMALL_GATHER
        if rows.numel() * rows.element_size() <= limit:
            answer = parts[0] if self.world == 2 else rows  # the second of two ranks has its own rows
            send_to_first(ROWS, parts[self.rank], parts, answer, self.group)
            send_onward(ROWS, answer, self.group)
            return []
        return broadcasts(parts, self.group)

    def sum(self, x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`, of any dtype: numbers narrower than 32 bits are summed in 32 bits or more."""
        if x.is_complex():
            return torch.view_as_complex(self.sum(torch.view_as_real(x.resolve_conj()), dim, sizes)).clone()
        refuse_batched(x)
        x = x.detach()
        flat = in_rank_order(x, dim, sizes)
        row = row_elements(x, dim)
        counts = [size * row for size in sizes]
        own = x.new_empty(resized(x, dim, sizes[self.rank]))
        with failures_named("sum over ranks", self.group, x, dim, sizes):
            busiest = self.world * max(counts)  # elements that one rank would receive
            if flat.numel() * flat.element_size() <= SMALL_SUM // max(self.world, 8):
                self._sum_on_first(flat, counts, own.view(-1))
            elif busiest > 2 * flat.numel() and busiest * flat.element_size() > MOST_FOR_ONE_RANK:
                self._sum_everywhere(flat, counts, own.view(-1))
            else:
                self._sum_on_each(flat, counts, own.view(-1))
        return own

    def _sum_on_first(self, flat: Tensor, counts: list[int], own: Tensor) -> None:
        """The first rank receives every rank's summand, adds them up, and sends the sum to all."""
        total = torch.empty_like(flat)
        summands = [flat]
        if self.rank == 0:
            summands += flat.new_empty((self.world - 1, flat.numel()))
        send_to_first(SUMS, flat, summands, total, self.group)
        if self.rank == 0:
            add_up(summands, total)
        send_onward(SUMS, total, self.group)
        own.copy_(total.split(counts)[self.rank])

    def _sum_everywhere(self, flat: Tensor, counts: list[int], own: Tensor) -> None:
        """One rank owns most rows: an all-reduce sends each rank less than that one would receive."""
        total = flat.to(dtype_of_sums(flat.dtype), copy=True)
        dist.all_reduce(total, group=self.group)
        own.copy_(total.split(counts)[self.rank])

    def _sum_on_each(self, flat: Tensor, counts: list[int], own: Tensor) -> None:
        """Each rank receives its rows of every rank's summand, and adds them up."""
        itemsize = flat.element_size()
        received = flat.new_empty((self.world, counts[self.rank]))
        bytes_from_each = [counts[self.rank] * itemsize] * self.world
        bytes_to_each = [count * itemsize for count in counts]
        dist.all_to_all_single(
            as_bytes(received), flat.view(torch.uint8), bytes_from_each, bytes_to_each, group=self.group
        )
        add_up(received, own)


def is_in_memory(x: Tensor) -> bool:
    """Whether rows can be copied into a message: in a group of gloo and NCCL, a call's tensors may be elsewhere."""
    return is_plain(x) and x.device.type == "cpu"


def add_up(summands: Sequence[Tensor], total: Tensor) -> None:
    """One after the other: torch.sum over large ones takes longer."""
    wide = total
    if dtype_of_sums(total.dtype) != total.dtype:
        wide = torch.empty_like(total, dtype=dtype_of_sums(total.dtype))
    wide.copy_(summands[0])
    for summand in summands[1:]:
        wide.add_(summand.to(wide.dtype))
    if wide is not total:
        total.copy_(wide)


def broadcasts(parts: Sequence[Tensor], group: Any) -> list[Any]:
    """A broadcast from each rank, of its part."""
    works = []
    for rank, part in enumerate(parts):
        source = dist.get_global_rank(group, rank)
        works.append(dist.broadcast(as_bytes(part), source, group, async_op=True))
    return works


class Buffers:
    """What the exchange of headers sends and receives, made once for each group.

    `blocks`: what each rank sends, on the first rank one from every rank, elsewhere this rank's alone.
    `message`: the first rank's answer, all blocks one after the other.
    """

    def __init__(self, rank: int, world: int) -> None:
        self.world = world
        self.room = HEADER + ROOM // world // ALIGNMENT * ALIGNMENT  # bytes of the longest block
        self.message_start = self.room * (world if rank == 0 else 1)
        self.memory = memoryview(bytearray(self.message_start + self.room * world))
        with torch.inference_mode(False):  # else they could not be written to outside of it
            whole = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.blocks = whole[: self.message_start].split(self.room)
        self.message = whole[self.message_start :]

    def write(self, claim: _Claim, numbers: Sequence[int], xs: Sequence[Tensor], dim: int) -> Tensor:
        """This rank's block, with the numbers if they fit, and the rows of `xs` if they fit as well."""
        end_of_numbers = HEADER + NUMBER * len(numbers)
        if end_of_numbers > self.room:
            end_of_numbers = HEADER
        else:
            pack_into(f"={len(numbers)}q", self.memory, HEADER, *numbers)
        block = block_of([row_bytes(x, dim) for x in xs], claim.size, len(numbers))
        end_of_rows = block.end if xs and block.end <= self.room else 0
        if end_of_rows:
            for x, start in zip(xs, block.starts, strict=True):
                write_rows(x, self.blocks[0], start)
        CLAIM.pack_into(self.memory, 0, *claim, end_of_numbers, end_of_rows)
        return self.blocks[0].narrow(0, 0, end_of_rows or end_of_numbers)

    def join_blocks(self) -> None:
        """All blocks into the message; no rows if a rank sent none."""
        starts = range(0, self.message_start, self.room)
        headers = [CLAIM.unpack_from(self.memory, start) for start in starts]
        has_rows = all(end_of_rows for *_, end_of_rows in headers)
        position = self.message_start
        for start, (*claim, end_of_numbers, end_of_rows) in zip(starts, headers, strict=True):
            length = end_of_rows if has_rows else end_of_numbers
            self.memory[position : position + length] = self.memory[start : start + length]
            if not has_rows:
                CLAIM.pack_into(self.memory, position, *claim, end_of_numbers, 0)
            position += length

    def read_headers(self) -> tuple[list[Any], list[int]]:
        """Every rank's header in the message; where each block starts, and last where the message ends."""
        headers = []
        starts = [0]
        for _ in range(self.world):
            header = CLAIM.unpack_from(self.memory, self.message_start + starts[-1])
            *_, end_of_numbers, end_of_rows = header
            headers.append(header)
            starts.append(starts[-1] + (end_of_rows or end_of_numbers))
        return headers, starts

    def read_numbers(self, starts: Sequence[int], count: int) -> list[list[int]]:
        """Every rank's numbers in the message."""
        first = self.message_start + HEADER
        return [list(unpack_from(f"={count}q", self.memory, first + start)) for start in starts]


def send_to_first(tag: int, block: Tensor, blocks: Sequence[Tensor], answer: Tensor, group: Any) -> None:
    """This rank's block to the first rank, into its `blocks`; its answer, which `send_onward` sends, into `answer`.

    Receives are posted before anything is sent: a message that finds its receiver ready does not cross another.
    """
    rank, world = group.rank(), group.size()
    if rank == 0:
        works = [group.recv([blocks[other]], other, tag) for other in range(1, world)]
    else:
        parent = rank & (rank - 1)  # in the binomial tree of `send_onward`
        works = [group.recv([answer], parent, tag + 1)]
        group.send([block], 0, tag).wait()
    for work in works:
        work.wait()


def send_onward(tag: int, answer: Tensor, group: Any) -> None:
    """The first rank's answer, along a binomial tree."""
    children = _children(group.rank(), group.size())
    works = [group.send([answer], child, tag + 1) for child in children]
    for work in works:
        work.wait()


@cache
def _children(rank: int, world: int) -> list[int]:
    """The ranks that a rank sends to, the one with most ranks behind it first."""
    children = []
    step = 1
    while rank + step < world and not rank & step:
        children.append(rank + step)
        step *= 2
    return children[::-1]
