# SPDX-License-Identifier: MIT
"""How bytes move, by backend, where there is a faster way than the heart's broadcasts and all-reduce.

Whatever is chosen here is chosen from what every rank shares: sizes, bytes a row, backend, world
size. Never from contiguity, requires_grad or anything else that a rank has to itself.

| backend | what                              | how                               | ms, and other ways'                |
|---------|-----------------------------------|-----------------------------------|------------------------------------|
| gloo    | gathers, up to 2 MiB in all       | through the first rank            | 3.3, all-to-all 4.6, broadcasts 10 |
|         | gathers, larger                   | broadcasts, as in the heart       | 15, first rank 14, all-to-all 18   |
|         | sums, up to 512 KiB a rank        | through the first rank            | 4.2, all-to-all 5.9, all-reduce 17 |
|         | sums, larger                      | one all-to-all, then a local sum  | 17, all-reduce 35                  |
|         | the same, much larger, and skewed | even shares first, then to owners | 25, all-to-all 39, all-reduce 40   |
| nccl    | gathers                           | one all-gather, uneven or even    | not measured                       |
|         | sums                              | one reduce-scatter                | not measured                       |

Borders and medians are those of 8 ranks, on 2 cores: 64 KiB a rank where it says "up to", else 1 MiB. For small ones
the number of messages decides, and how many of them cross. A thread of gloo's asks again and again for a connection
that another thread holds. If the holder waits for the same core, both lose a time slice. Through one rank go 2 (W - 1)
messages; all to all, W (W - 1) that cross. Large gathers go straight to all for the sake of networks: the first rank's
link would carry all rows log2(W) times.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

SMALL = 2 << 20  # bytes of all ranks that a gather on gloo takes through the first one; twice that from 9 ranks on
SMALL_SUM = 4 << 20  # bytes that a sum on gloo brings to the first rank; from each, no more than if they were eight
SMALL_OF_TWO = 128 << 10  # bytes of a sum over two ranks that go in two messages; at 512 KiB all-to-all is faster
ONE_ROUND = 16 << 20  # bytes that a sum on gloo brings to the busiest rank before a second round is worth it
HEADERS, ROWS, SUMS = 1 << 30, 3 << 29, 7 << 28  # tags of messages to the first rank, and, plus 1, from it


def through_first(
    tag: int, own: Tensor, blocks: Sequence[Tensor], whole: Tensor, group: Any, complete: Any = None
) -> None:
    """Own block to the first rank, into its `blocks`; then the first rank's `whole` into all others'.

    `complete` gives as much of it as there is to send on. It goes from rank to rank along a binomial tree.
    Receives are posted before anything is sent: a message that finds its receiver ready crosses no other on its way.
    """
    group = group or dist.group.WORLD
    rank, world = group.rank(), group.size()
    if rank:
        coming = [group.recv([whole], rank & (rank - 1), tag + 1)]
        group.send([own], 0, tag).wait()
    else:
        coming = [group.recv([blocks[r]], r, tag) for r in range(world) if r != rank]
    for work in coming:
        work.wait()
    whole = complete() if complete else whole
    for work in [group.send([whole], child, tag + 1) for child in _children(rank, world)]:
        work.wait()


@cache
def _children(rank: int, world: int) -> list[int]:
    """To whom a rank sends on, the one with most ranks behind it first."""
    bits = (rank & -rank or world).bit_length() - (rank > 0)
    return [rank + (1 << bit) for bit in reversed(range(bits)) if rank + (1 << bit) < world]


def _gather_on_gloo(rows: Tensor, blocks: Sequence[Tensor], rank: int, group: Any) -> list[Any]:
    if rows.numel() * rows.element_size() > (SMALL if len(blocks) <= 8 else 2 * SMALL):
        return _gather_by_broadcasts(rows, blocks, rank, group)
    needed = rows if len(blocks) > 2 else blocks[0]  # the second rank of two has its own
    through_first(ROWS, blocks[rank], blocks, needed, group)
    return []


def _sum_on_gloo(flat: Tensor, counts: list[int], rank: int, group: Any, own: Tensor) -> None:
    world, total = len(counts), sum(counts)
    if total * flat.element_size() <= (SMALL_OF_TWO if world == 2 else SMALL_SUM // max(world, 8)):
        _sum_through_first(flat, counts, rank, group, own)
        return
    # all-to-all sends the busiest rank (W - 1) max(n) rows; even shares, twice (W - 1) / W N, in two rounds
    busiest = world * max(counts)
    if busiest <= 2 * total or busiest * flat.element_size() <= ONE_ROUND:
        _swap_and_sum(flat, counts, rank, group, own)
        return
    shares = [total // world + (r < total % world) for r in range(world)]
    share = flat.new_empty(shares[rank])
    _swap_and_sum(flat, shares, rank, group, share)
    overlaps = _overlaps(shares, counts)  # [share][owner]
    _swap(share, overlaps[rank], own, [row[rank] for row in overlaps], group)


def _sum_through_first(flat: Tensor, counts: list[int], rank: int, group: Any, own: Tensor) -> None:
    if len(counts) == 2:  # to each what it lacks
        for_first, for_second = blocks = flat.split(counts)
        blocks_of_first = [for_first, own]
        through_first(SUMS, for_first, blocks_of_first, own if rank else for_second, group)
        _add_up([own, blocks[rank]], own)
        return
    whole = torch.empty_like(flat)
    by_rank = [] if rank else [flat, *flat.new_empty((len(counts) - 1, flat.numel()))]

    def complete() -> Tensor:
        if by_rank:
            _add_up(by_rank, whole)
        return whole

    through_first(SUMS, flat, by_rank, whole, group, complete)
    own.copy_(whole.split(counts)[rank])


def _swap_and_sum(flat: Tensor, counts: list[int], rank: int, group: Any, own: Tensor) -> None:
    if len(counts) == 2:  # own rows need not travel
        blocks, other = flat.split(counts), 1 - rank
        sent, from_each = [0, 0], [0, 0]
        sent[other], from_each[other] = counts[other], counts[rank]
        _swap(blocks[other], sent, own, from_each, group)
        _add_up([own, blocks[rank]], own)
        return
    received = flat.new_empty(len(counts) * counts[rank])
    _swap(flat, counts, received, [counts[rank]] * len(counts), group)
    _add_up(received.view(len(counts), counts[rank]).unbind(), own)


def _add_up(blocks: Sequence[Tensor], own: Tensor) -> None:
    """The sum of blocks, one after the other: torch.sum over large ones takes longer."""
    wide = _accumulator(own.dtype)
    total = own if own.dtype == wide else own.new_empty(own.shape, dtype=wide)
    total.copy_(blocks[0])
    for block in blocks[1:]:
        total.add_(block.to(wide))
    own.copy_(total)


def _swap(flat: Tensor, sent: list[int], into: Tensor, received: list[int], group: Any) -> None:
    """So many elements to each rank, and so many from it; as bytes, since gloo knows few dtypes."""
    size = flat.element_size()
    splits = [n * size for n in received], [n * size for n in sent]
    dist.all_to_all_single(into.view(torch.uint8), flat.view(torch.uint8), *splits, group=group)


def _overlaps(a: list[int], b: list[int]) -> list[list[int]]:
    """How much of each block of one division lies in each block of another."""
    spans = [list(zip([0, *accumulate(sizes)], accumulate(sizes), strict=False)) for sizes in (a, b)]
    return [[max(0, min(end, last) - max(start, first)) for first, last in spans[1]] for start, end in spans[0]]


def _gather_on_nccl(rows: Tensor, blocks: Sequence[Tensor], rank: int, group: Any) -> list[Any]:
    blocks = [as_bytes(block) for block in blocks]
    if len({len(block) for block in blocks}) == 1:
        all_gather = _renamed("all_gather_single", "all_gather_into_tensor")
        return [all_gather(as_bytes(rows), blocks[rank], group, async_op=True)]
    # grouped broadcasts, straight into these views
    return [dist.all_gather(list(blocks), blocks[rank], group, async_op=True)]


def _sum_on_nccl(flat: Tensor, counts: list[int], rank: int, group: Any, own: Tensor) -> None:
    wide = flat.to(_accumulator(flat.dtype))
    into = own if wide.dtype == own.dtype else wide.new_empty(counts[rank])
    if len(set(counts)) == 1:
        _renamed("reduce_scatter_single", "reduce_scatter_tensor")(into, wide, group=group)
    else:  # grouped reduces, straight from these views
        dist.reduce_scatter(into, list(wide.split(counts)), group=group)
    if into is not own:
        own.copy_(into)


def _renamed(new: str, old: str) -> Callable[..., Any]:
    return getattr(dist, new, None) or getattr(dist, old)  # newer torch has it under the new name


def _gather_by_broadcasts(rows: Tensor, blocks: Sequence[Tensor], rank: int, group: Any) -> list[Any]:
    group, by_rank = group or dist.group.WORLD, enumerate(map(as_bytes, blocks))  # gloo knows few dtypes
    return [dist.broadcast(block, dist.get_global_rank(group, r), group, async_op=True) for r, block in by_rank]


def as_bytes(x: Tensor) -> Tensor:
    """A contiguous tensor's memory."""
    return x.view(-1).view(torch.uint8)


def _sum_by_all_reduce(flat: Tensor, counts: list[int], rank: int, group: Any, own: Tensor) -> None:
    total = flat.to(_accumulator(flat.dtype), copy=True)
    dist.all_reduce(total, group=group)
    own.copy_(total.split(counts)[rank])


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are taken: at least 32 bits, and one that every backend can add."""
    if dtype.is_floating_point:
        return dtype if torch.finfo(dtype).bits >= 32 else torch.float32
    return torch.int64


class Transport(NamedTuple):
    """How a backend spreads own block, of rows that have one for every rank; and sums blocks of elements."""

    gather: Callable[[Tensor, Sequence[Tensor], int, Any], list[Any]]
    total: Callable[[Tensor, list[int], int, Any, Tensor], None]


BROADCASTS = Transport(_gather_by_broadcasts, _sum_by_all_reduce)
TRANSPORTS = {"gloo": Transport(_gather_on_gloo, _sum_on_gloo), "nccl": Transport(_gather_on_nccl, _sum_on_nccl)}
