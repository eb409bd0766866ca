# SPDX-License-Identifier: MIT
"""How bytes move. No padding: only real rows travel, into views of one buffer.

Whatever is chosen here is chosen from what every rank shares: sizes, bytes a row, backend, world
size. Never from contiguity, requires_grad or anything else that a rank has to itself.

| backend | what, and when                            | how                                          | why, in ms     |
|---------|-------------------------------------------|----------------------------------------------|----------------|
| gloo    | gather, up to 2 MiB on the busiest rank   | one all-to-all of the repeated input         | 6.8, p2p 8.9   |
|         | gather, larger                            | point to point, straight into the output     | 286, a2a 456   |
|         | sum, up to 2 MiB in all                   | one all-to-all, then a local sum             | 6.8, a-r 20    |
|         | sum, larger                               | point to point, then a local sum             | 74, a-r 166    |
|         | sum, larger, and one rank owns over 2 / W | even shares summed so, then to their owners  | 79, a-r 143    |
| nccl    | gather                                    | all-gather, uneven: into views of the output | not measured   |
|         | sum                                       | reduce-scatter, uneven: from views           | not measured   |
| others  | gather                                    | a broadcast from each rank                   | every backend  |
|         | sum                                       | all-reduce, then own rows                    | has these      |

The figures are medians at 8 ranks on 2 cores: 512 KiB and 64 MiB gathered, 1 and 32 MiB summed, even but for the
last one (p2p: point to point, a2a: all-to-all, a-r: all-reduce). `adapters bench` measures the whole.

    n_r   rows of rank r along dim     N   sum of n_r     W   world size
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod

import torch
import torch.distributed as dist
from einops import reduce
from torch import Tensor

from ._compile import opaque
from ._errors import BadInputError
from ._faults import failures_named
from ._world import Group, backend_by_device, control_device, global_rank, is_compiling, rank_and_world

Works = list[dist.Work | None]

# Above this an all-to-all's copies cost more than its single operation saves; at 4 MiB, 8 ranks: 15.4 ms against 13.8
_SMALL = 2 << 20
# of our point-to-point messages: apart from anybody else's, and from each other where ranks are in different calls
_ROWS_TAG, _HEADER_TAG = 0x5D, 0x5E


def exchange_header(operation: str, header: Sequence[int], group: Group) -> list[list[int]]:
    """Every rank's header, in rank order: one small exchange, and the only read back to the host."""
    _, world = rank_and_world(group)
    device = control_device(group)
    with torch.inference_mode(False):  # gloo of torch 2.0 writes from a thread that is never in that mode
        mine = torch.tensor(header, dtype=torch.long).to(device)
        everyones = mine.new_empty(world * len(header))
    with failures_named(lambda: f"{operation}: exchange of sizes", group):
        if backend_by_device(group)[device.type] == "gloo":
            _exchange_on_gloo(everyones, mine, group)
        else:
            dist.all_gather(list(everyones.split(len(header))), mine, group=group)
    return read_to_host(everyones.view(world, -1))


def _exchange_on_gloo(everyones: Tensor, mine: Tensor, group: Group) -> None:
    """Not by the all-to-all that rows take: a header that meets rows, on ranks in different calls, would abort."""
    rank, world = rank_and_world(group)
    parts = list(everyones.split(mine.numel()))
    if world == 2:
        _wait_for(_point_to_point([mine, mine], parts, group, _HEADER_TAG))
    else:  # at W = 8 on 2 cores 4 ms; all-to-all 8, all-gather (a ring of W steps) 14
        root = global_rank(0, group)
        dist.gather(mine, parts if rank == 0 else None, dst=root, group=group)
        dist.broadcast(everyones, src=root, group=group)


def read_to_host(headers: Tensor) -> list[list[int]]:
    """The one device-to-host copy of a call whose sizes were not given."""
    rows: list[list[int]] = headers.tolist()
    return rows


# ------------------------------------------------------------------ gather


def gather_rows(x: Tensor, dim: int, sizes: Sequence[int], group: Group) -> Tensor:
    """`(… n_r …) -> (… N …)` along dim >= 0, in rank order, contiguous; carries no gradient."""
    if is_compiling():
        traced: Tensor = _gather_operator(x, dim, list(sizes), group)
        return traced
    return start_gather(x, dim, sizes, group)()


def start_gather(x: Tensor, dim: int, sizes: Sequence[int], group: Group) -> Callable[[], Tensor]:
    """Send every rank's bytes on their way into one buffer. What comes back waits for them: the gathered tensor."""
    # every dtype travels as bytes: gloo has no int16 and no fp8, NCCL no int16
    own = _flat(x.detach()).view(torch.uint8)
    before, after, dtype = x.shape[:dim], x.shape[dim + 1 :], x.dtype
    counts = [n * prod(before) * prod(after) * x.element_size() for n in sizes]
    if own.numel() != counts[rank_and_world(group)[0]]:  # a compiled call: nobody could look before it ran
        raise BadInputError(f"sizes {tuple(sizes)} do not fit dim {dim} of shape {tuple(x.shape)}")
    flat = own.new_empty(sum(counts))
    move = _GATHER.get(backend_by_device(group)[x.device.type], _gather_by_broadcasts)

    def operation() -> str:
        return f"gather of {dtype} {(*before, tuple(sizes), *after)} along dim {dim}"

    def wait() -> Tensor:
        with failures_named(operation, group):
            _wait_for(works)
        gathered = flat.view(dtype)
        if prod(before) == 1:  # the blocks in rank order are the output already
            return gathered.view(*before, sum(sizes), *after)
        blocks = gathered.split([n * prod(before) * prod(after) for n in sizes])
        return torch.cat([block.view(*before, n, *after) for block, n in zip(blocks, sizes, strict=True)], dim)

    with failures_named(operation, group):
        works = move(flat, own, counts, group)
    return wait


def _gather_on_gloo(flat: Tensor, own: Tensor, counts: Sequence[int], group: Group) -> Works:
    world = len(counts)
    if world * max(counts) > _SMALL:
        return _point_to_point([own] * world, flat.split(list(counts)), group)
    own_counts = [own.numel()] * world
    return [dist.all_to_all_single(flat, own.repeat(world), list(counts), own_counts, group=group, async_op=True)]


def _gather_on_nccl(flat: Tensor, own: Tensor, counts: Sequence[int], group: Group) -> Works:
    if len(set(counts)) == 1:
        return [_all_gather_single(flat, own, group=group, async_op=True)]
    # grouped broadcasts, straight into these views
    return [dist.all_gather(list(flat.split(list(counts))), own, group=group, async_op=True)]


def _gather_by_broadcasts(flat: Tensor, own: Tensor, counts: Sequence[int], group: Group) -> Works:
    rank, _ = rank_and_world(group)
    blocks = flat.split(list(counts))
    blocks[rank].copy_(own)
    return [
        dist.broadcast(block, src=global_rank(source, group), group=group, async_op=True)
        for source, block in enumerate(blocks)
        if block.numel() > 0
    ]


# ------------------------------------------------------------------ sum


def sum_rows(x: Tensor, dim: int, sizes: Sequence[int], group: Group) -> Tensor:
    """`(… N …) -> (… n_r …)`: this rank's rows of the sum over ranks; `x` is never written to.

    Sums of numbers narrower than 32 bits are taken in 32 bits or more, whoever does the summing.
    """
    if is_compiling():
        traced: Tensor = _sum_operator(x, dim, list(sizes), group)
        return traced
    if x.is_complex():  # NCCL adds none
        return torch.view_as_complex(sum_rows(torch.view_as_real(x.resolve_conj()), dim, sizes, group))
    rank, _ = rank_and_world(group)
    backend = backend_by_device(group)[x.device.type]
    # blocks in rank order, each one contiguous: (n_0 …) (n_1 …) …
    x = x.detach()
    parts = x.split(list(sizes), dim)
    counts = [part.numel() for part in parts]
    if prod(x.shape[:dim]) == 1:
        flat = _flat(x)
    else:
        flat = x.new_empty(x.numel())
        for block, part in zip(flat.split(counts), parts, strict=True):
            block.view(part.shape).copy_(part)
    shape = (*x.shape[:dim], tuple(sizes), *x.shape[dim + 1 :])
    with failures_named(lambda: f"sum over ranks of {x.dtype} {shape} along dim {dim}", group):
        own = _SUM.get(backend, _sum_by_all_reduce)(flat, counts, rank, group)
    return own.to(x.dtype).view(parts[rank].shape)


def _sum_on_gloo(flat: Tensor, counts: Sequence[int], rank: int, group: Group) -> Tensor:
    world, total = len(counts), sum(counts)
    # all-to-all sends the busiest rank (W - 1) max(n) rows; even shares, twice (W - 1) / W N
    if total * flat.element_size() <= _SMALL or world * max(counts) <= 2 * total:
        return _swap_and_sum(flat, counts, rank, group)
    shares = [total // world + (r < total % world) for r in range(world)]
    share = _swap_and_sum(flat, shares, rank, group).to(flat.dtype).view(torch.uint8)
    own = flat.new_empty(counts[rank])
    overlaps = _overlaps(shares, counts, flat.element_size())  # [share][owner], in bytes
    from_shares = own.view(torch.uint8).split([row[rank] for row in overlaps])
    _wait_for(_point_to_point(share.split(overlaps[rank]), from_shares, group))
    return own


def _swap_and_sum(flat: Tensor, counts: Sequence[int], rank: int, group: Group) -> Tensor:
    world, size, accumulator = len(counts), flat.element_size(), _accumulator(flat.dtype)
    if flat.numel() * size <= _SMALL:
        receive, sent = flat.new_empty(world * counts[rank]), [n * size for n in counts]
        received = [sent[rank]] * world
        dist.all_to_all_single(receive.view(torch.uint8), flat.view(torch.uint8), received, sent, group=group)
        return reduce(receive.to(accumulator), "(rank element) -> element", "sum", rank=world)
    send, nothing = list(flat.split(list(counts))), flat[:0]
    total: Tensor = send[rank].to(accumulator, copy=True)
    send[rank] = nothing
    parts = [nothing if r == rank else flat.new_empty(counts[rank]) for r in range(world)]
    _wait_for(_point_to_point([p.view(torch.uint8) for p in send], [p.view(torch.uint8) for p in parts], group))
    for r, part in enumerate(parts):
        if r != rank:
            total += part.to(accumulator)
    return total


def _sum_on_nccl(flat: Tensor, counts: Sequence[int], rank: int, group: Group) -> Tensor:
    wide = flat.to(_accumulator(flat.dtype))
    own = wide.new_empty(counts[rank])
    if len(set(counts)) == 1:
        _reduce_scatter_single(own, wide, group=group)
    else:  # grouped reduces, straight from these views
        dist.reduce_scatter(own, list(wide.split(list(counts))), group=group)
    return own


def _sum_by_all_reduce(flat: Tensor, counts: Sequence[int], rank: int, group: Group) -> Tensor:
    total = flat.to(_accumulator(flat.dtype), copy=True)
    dist.all_reduce(total, group=group)
    own: Tensor = total.split(list(counts))[rank]
    return own.clone()  # a view would keep all of it alive


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are taken: at least 32 bits, and one that every backend can add."""
    if dtype.is_floating_point:
        return dtype if torch.finfo(dtype).bits >= 32 else torch.float32
    return torch.int64


# ------------------------------------------------------------------ both


def _flat(x: Tensor) -> Tensor:
    """A tensor's elements in a row, in memory as they read; a view where they are so already."""
    x = x.resolve_conj().resolve_neg().contiguous()
    return x.as_strided((x.numel(),), (1,))  # view(-1) would keep the odd stride of a single element


def _point_to_point(send: Sequence[Tensor], receive: Sequence[Tensor], group: Group, tag: int = _ROWS_TAG) -> Works:
    """`send[r]` to each rank r, `receive[r]` from it; nothing where a block is empty."""
    rank, world = rank_and_world(group)
    receive[rank].copy_(send[rank])
    peers = [(rank + step) % world for step in range(1, world)]
    receives = [
        dist.irecv(receive[peer], src=global_rank(peer, group), group=group, tag=tag)
        for peer in reversed(peers)
        if receive[peer].numel() > 0
    ]
    sends = [
        dist.isend(send[peer], dst=global_rank(peer, group), group=group, tag=tag)
        for peer in peers
        if send[peer].numel() > 0
    ]
    return [*receives, *sends]


def _wait_for(works: Works) -> None:
    for work in works:
        if work is not None:
            work.wait()


def _overlaps(a: Sequence[int], b: Sequence[int], scale: int) -> list[list[int]]:
    """How much of each block of one division lies in each block of another, times `scale`."""
    ends_a, ends_b = list(accumulate(a)), list(accumulate(b))
    return [
        [scale * max(0, min(end_a, end_b) - max(end_a - n, end_b - m)) for end_b, m in zip(ends_b, b, strict=True)]
        for end_a, n in zip(ends_a, a, strict=True)
    ]


# the newer names of the two collectives that newer torch renames
_all_gather_single = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
_reduce_scatter_single = (
    dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
)

_GATHER: dict[str, Callable[..., Works]] = {"gloo": _gather_on_gloo, "nccl": _gather_on_nccl}
_SUM: dict[str, Callable[..., Tensor]] = {"gloo": _sum_on_gloo, "nccl": _sum_on_nccl}


# ------------------------------------------------------------------ under torch.compile


def empty_like(x: Tensor, dim: int, size: int | torch.SymInt) -> Tensor:
    """A new tensor like `x`, but for its size along dim."""
    return x.new_empty((*x.shape[:dim], size, *x.shape[dim + 1 :]))


_SCHEMA = "(Tensor x, int dim, SymInt[] sizes, str group) -> Tensor"
_gather_operator = opaque(
    "gather_rows", _SCHEMA, gather_rows, lambda x, dim, sizes, group: empty_like(x, dim, sum(sizes))
)
_sum_operator = opaque(
    "sum_rows", _SCHEMA, sum_rows, lambda x, dim, sizes, group: empty_like(x, dim, sizes[rank_and_world(group)[0]])
)
