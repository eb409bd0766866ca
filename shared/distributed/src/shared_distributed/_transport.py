# SPDX-License-Identifier: MIT
"""How bytes move. No padding: only real rows travel, into views of one buffer.

Whatever is chosen here is chosen from what every rank shares: sizes, bytes a row, backend, world
size. Never from contiguity, requires_grad or anything else that a rank has to itself.

    n_r   rows of rank r along dim          N   sum of n_r
"""

from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.distributed as dist
from einops import reduce
from torch import Tensor
from torch.distributed import ProcessGroup

from ._world import backend_by_device, control_device, rank_and_world

Group = ProcessGroup | None


def exchange_header(header: Sequence[int], group: Group) -> list[list[int]]:
    """Every rank's header, in rank order: one small collective, and the only read back to the host."""
    _, world = rank_and_world(group)
    device = control_device(group)
    mine = torch.tensor(header, dtype=torch.long).to(device)
    everyones = mine.new_empty(world * len(header))
    if backend_by_device(group)[device.type] == "gloo":
        # gloo's all-gather is a ring of W steps; this is one (W = 8 on 2 cores: 5 ms against 14)
        dist.all_to_all_single(everyones, mine.repeat(world), group=group)
    else:
        dist.all_gather(list(everyones.split(len(header))), mine, group=group)
    return read_to_host(everyones.view(world, -1))


def read_to_host(headers: Tensor) -> list[list[int]]:
    """The one device-to-host copy of a call whose sizes were not given."""
    rows: list[list[int]] = headers.tolist()
    return rows


def gather_rows(x: Tensor, dim: int, sizes: Sequence[int], group: Group) -> Tensor:
    """`(… n_r …) -> (… N …)` along dim >= 0, in rank order, contiguous; carries no gradient."""
    shape = list(x.shape)
    elements_a_row = prod(shape[:dim]) * prod(shape[dim + 1 :])
    # every dtype travels as bytes: gloo has no int16 and no fp8, NCCL no int16
    own = x.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
    counts = [n * elements_a_row * x.element_size() for n in sizes]
    flat = own.new_empty(sum(counts))
    _gather_into(flat, own, counts, group)

    flat = flat.view(x.dtype)
    if prod(shape[:dim]) == 1:  # rank-order blocks are the output already
        return flat.view(*shape[:dim], sum(sizes), *shape[dim + 1 :])
    blocks = flat.split([n * elements_a_row for n in sizes])
    parts = [block.view(*shape[:dim], n, *shape[dim + 1 :]) for block, n in zip(blocks, sizes, strict=True)]
    return torch.cat(parts, dim)


def sum_rows(x: Tensor, dim: int, sizes: Sequence[int], group: Group) -> Tensor:
    """`(… N …) -> (… n_r …)`: this rank's rows of the sum over ranks. `x` is never written to."""
    rank, _ = rank_and_world(group)
    sum_by = _SUM.get(backend_by_device(group)[x.device.type], _sum_by_all_reduce)
    if sum_by is _sum_by_all_to_all and _is_skewed(sizes):
        sum_by = _sum_by_all_reduce
    # sums of less than 32 bits are accumulated in 32 or more, whoever does the summing
    return sum_by(x.detach().resolve_conj().resolve_neg(), dim, sizes, rank, group).to(x.dtype)


# ------------------------------------------------------------------ gather


def _gather_into(flat: Tensor, own: Tensor, counts: Sequence[int], group: Group) -> None:
    backend = backend_by_device(group)[own.device.type]
    _GATHER.get(backend, _gather_by_broadcasts)(flat, own, counts, group)


def _gather_by_broadcasts(flat: Tensor, own: Tensor, counts: Sequence[int], group: Group) -> None:
    rank, world = rank_and_world(group)
    blocks = flat.split(list(counts))
    blocks[rank].copy_(own)
    works = [
        dist.broadcast(block, src=_global_rank(source, group), group=group, async_op=True)
        for source, block in enumerate(blocks)
        if block.numel() > 0 and world > 1
    ]
    for work in works:
        work.wait()


def _gather_by_views(flat: Tensor, own: Tensor, counts: Sequence[int], group: Group) -> None:
    # uneven lists are grouped broadcasts in NCCL, straight into these views
    if len(set(counts)) == 1:
        dist.all_gather_into_tensor(flat, own, group=group)
    else:
        dist.all_gather(list(flat.split(list(counts))), own, group=group)


_GATHER: dict[str, Callable[..., None]] = {"gloo": _gather_by_broadcasts, "nccl": _gather_by_views}


# ------------------------------------------------------------------ reduce-scatter


def _is_skewed(sizes: Sequence[int]) -> bool:
    # rows on the busiest rank: all-to-all (W - 1) * max(n), ring all-reduce 2 * (W - 1) / W * N
    return len(sizes) * max(sizes) > 2 * sum(sizes)


def _sum_by_all_to_all(x: Tensor, dim: int, sizes: Sequence[int], rank: int, group: Group) -> Tensor:
    world, shape = len(sizes), list(x.shape)
    shape[dim] = sizes[rank]
    parts = x.split(list(sizes), dim)
    send = torch.cat([part.reshape(-1) for part in parts]) if prod(shape[:dim]) > 1 else x.contiguous().view(-1)
    receive = send.new_empty(world * prod(shape))
    counts = [part.numel() * x.element_size() for part in parts]
    own_counts = [counts[rank]] * world
    dist.all_to_all_single(receive.view(torch.uint8), send.view(torch.uint8), own_counts, counts, group=group)
    total = reduce(receive.to(_accumulator(x.dtype)), "(rank element) -> element", "sum", rank=world)
    return total.view(shape)


def _sum_by_all_reduce(x: Tensor, dim: int, sizes: Sequence[int], rank: int, group: Group) -> Tensor:
    total = torch.empty_like(x, dtype=_accumulator(x.dtype), memory_format=torch.contiguous_format).copy_(x)
    dist.all_reduce(total, group=group)
    return total.narrow(dim, sum(sizes[:rank]), sizes[rank]).clone()  # a view would keep all of it alive


def _sum_by_reduce_scatter(x: Tensor, dim: int, sizes: Sequence[int], rank: int, group: Group) -> Tensor:
    parts = [part.contiguous() for part in x.to(_accumulator(x.dtype)).split(list(sizes), dim)]
    own = torch.empty_like(parts[rank])
    dist.reduce_scatter(own, parts, group=group)
    return own


_SUM: dict[str, Callable[..., Tensor]] = {"gloo": _sum_by_all_to_all, "nccl": _sum_by_reduce_scatter}


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are taken: at least 32 bits, and one that every backend can add."""
    if dtype.is_complex:
        return torch.promote_types(dtype, torch.complex64)
    if dtype.is_floating_point:
        return dtype if torch.finfo(dtype).bits >= 32 else torch.float32
    return torch.int64


def _global_rank(rank: int, group: Group) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)
