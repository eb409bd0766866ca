# SPDX-License-Identifier: MIT
"""Faster transports, by backend, for what the heart does with broadcasts and an all-reduce.

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

The figures are medians at 8 ranks on 2 cores: 512 KiB and 64 MiB gathered, 1 and 32 MiB summed, even but for the
last one (p2p: point to point, a2a: all-to-all, a-r: all-reduce). `nox -s bench` measures the whole.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from einops import reduce
from torch import Tensor

from ._agree import _Call
from ._faults import failures_named

Works = list[Any]

# Above this an all-to-all's copies cost more than its single operation saves; at 4 MiB, 8 ranks: 15.4 ms against 13.8
_SMALL = 2 << 20
# of our point-to-point messages: apart from anybody else's, and from each other where ranks are in different calls
_ROWS_TAG, _HEADER_TAG = 0x5D, 0x5E

_TENSORS = 61  # of a container, agreed on in one exchange: a bit each, beside another

_collected = threading.local()  # the steps that finish the gathers of a thread, while it collects them


class FastCall(_Call):
    """A call that takes its backend's own transports, and names the ranks that fail in them."""

    def transport(self, device: torch.device) -> "Transport":
        """What TRANSPORTS has for the backend of a device. gloo has only broadcast and all-reduce off the CPU."""
        backend = self.backends[device.type]
        return BROADCASTS if backend == "gloo" and device.type != "cpu" else TRANSPORTS.get(backend, BROADCASTS)

    def agree(self, op: str, *xs: Any) -> tuple[Any, ...]:
        """The call and the tensors, as the heart agrees on them; many of them, at most so many at a time."""
        call, *agreed = super().agree(op, *xs[:_TENSORS])
        for start in range(_TENSORS, len(xs), _TENSORS):
            agreed += super().agree(op, *xs[start : start + _TENSORS])[1:]
        return call, *agreed

    def describe(self, op: str, *xs: Any) -> tuple[str, int, Any]:
        """The words for one tensor or several. An error that the caller found is raised here: so all ranks hear it."""
        words, found = [], []
        for x in xs:
            if isinstance(x, Exception):
                raise x
            text, size, sizes = super().describe(op, x)
            words.append(text.removeprefix(f"{op} of "))
            found.append(size)
        if len(set(found)) > 1:
            raise ValueError(f"the tensors of one call have different sizes along dim: {found}")
        return f"{op} of {'; '.join(words)}", size, sizes

    def exchange(self, ints: list[int], xs: Any) -> list[list[int]]:
        """Every rank's ints, as the heart does it."""
        with torch.inference_mode(False), failures_named(lambda: "exchange of sizes", self.group):
            return super().exchange(ints, xs)  # gloo of torch 2.0 cannot gather into inference tensors

    def spread(self, rows: Tensor, counts: list[int]) -> None:
        """The headers of an exchange; rows go through `gather`."""
        self.transport(rows.device).exchange(rows, counts, dist.get_rank(self.group), self.group)

    def gather(self, x: Tensor) -> Tensor:
        """`(… n_r …) -> (… sum(n) …)`, as the heart does it; or, while steps are collected, a start of it."""
        dim, x = self.dim % x.ndim, x.detach()
        out = x.new_empty((*x.shape[:dim], sum(self.sizes), *x.shape[dim + 1 :]))
        target = out.movedim(dim, 0)
        rows = target if target.is_contiguous() else target.new_empty(target.shape)
        rank, parts = dist.get_rank(self.group), rows.split(self.sizes)
        parts[rank].copy_(x.movedim(dim, 0))
        flat, counts = rows.view(-1).view(torch.uint8), [part.numel() * part.element_size() for part in parts]
        start = self.transport(x.device).gather

        def operation() -> str:
            return f"gather of {x.dtype} {(*x.shape[:dim], self.sizes, *x.shape[dim + 1 :])} along dim {dim}"

        def finish() -> None:
            with failures_named(operation, self.group):
                _wait_for(works)
            if rows is not target:
                with torch.no_grad():
                    target.copy_(rows)

        with failures_named(operation, self.group):
            works = start(flat, counts, rank, self.group)
        steps: list[Callable[[], None]] | None = getattr(_collected, "steps", None)
        if steps is None:
            finish()
        else:
            steps.append(finish)
        return out

    def sum(self, x: Tensor) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`, of any dtype: numbers narrower than 32 bits are summed in 32 bits or more."""
        dim, x = self.dim % x.ndim, x.detach().to_dense() if x.is_sparse else x.detach()
        if x.is_complex():  # NCCL adds none
            return torch.view_as_complex(self._replace(dim=dim).sum(torch.view_as_real(x.resolve_conj())))
        rank, parts = dist.get_rank(self.group), x.split(self.sizes, dim)
        counts = [part.numel() for part in parts]
        flat = x.new_empty(x.numel())  # blocks in rank order, each one contiguous: (n_0 …) (n_1 …) …
        if prod(x.shape[:dim]) == 1 and x.is_contiguous() and not x.is_neg():
            flat = x.as_strided((x.numel(),), (1,))  # view(-1) would keep the odd stride of a single element
        else:
            for block, part in zip(flat.split(counts), parts, strict=True):
                block.view(part.shape).copy_(part)
        shape = (*x.shape[:dim], self.sizes, *x.shape[dim + 1 :])
        with failures_named(lambda: f"sum over ranks of {x.dtype} {shape} along dim {dim}", self.group):
            own = self.transport(x.device).total(flat, counts, rank, self.group)
        return own.to(x.dtype).view(parts[rank].shape)


@contextmanager
def steps_collected() -> Iterator[list[Callable[[], None]]]:
    """Gathers in here are only started; each step of the list finishes one."""
    outer, _collected.steps = getattr(_collected, "steps", None), []
    try:
        yield _collected.steps
    finally:
        _collected.steps = outer


# ------------------------------------------------------------------ gloo


def _exchange_on_gloo(flat: Tensor, counts: list[int], rank: int, group: Any) -> None:
    """Not by the all-to-all that rows take: a header that meets rows, on ranks in different calls, would abort."""
    blocks = list(flat.split(counts))
    if len(blocks) == 2:
        _wait_for(_point_to_point([blocks[rank]] * 2, blocks, rank, group, _HEADER_TAG))
    else:  # at W = 8 on 2 cores 4 ms; all-to-all 8, all-gather (a ring of W steps) 14
        root = _global_rank(0, group)
        dist.gather(blocks[rank].clone(), blocks if rank == 0 else None, dst=root, group=group)
        dist.broadcast(flat, src=root, group=group)


def _gather_on_gloo(flat: Tensor, counts: list[int], rank: int, group: Any) -> Works:
    world, blocks = len(counts), flat.split(counts)
    if world * max(counts) > _SMALL:
        return _point_to_point([blocks[rank]] * world, blocks, rank, group)
    own_counts = [counts[rank]] * world
    sent = blocks[rank].repeat(world)
    return [dist.all_to_all_single(flat, sent, counts, own_counts, group=group, async_op=True)]


def _sum_on_gloo(flat: Tensor, counts: list[int], rank: int, group: Any) -> Tensor:
    world, total = len(counts), sum(counts)
    # all-to-all sends the busiest rank (W - 1) max(n) rows; even shares, twice (W - 1) / W N
    if total * flat.element_size() <= _SMALL or world * max(counts) <= 2 * total:
        return _swap_and_sum(flat, counts, rank, group)
    shares = [total // world + (r < total % world) for r in range(world)]
    share = _swap_and_sum(flat, shares, rank, group).to(flat.dtype).view(torch.uint8)
    own = flat.new_empty(counts[rank])
    overlaps = _overlaps(shares, counts, flat.element_size())  # [share][owner], in bytes
    from_shares = own.view(torch.uint8).split([row[rank] for row in overlaps])
    _wait_for(_point_to_point(share.split(overlaps[rank]), from_shares, rank, group))
    return own


def _swap_and_sum(flat: Tensor, counts: list[int], rank: int, group: Any) -> Tensor:
    world, size, accumulator = len(counts), flat.element_size(), _accumulator(flat.dtype)
    if flat.numel() * size <= _SMALL:
        receive, sent = flat.new_empty(world * counts[rank]), [n * size for n in counts]
        received = [sent[rank]] * world
        dist.all_to_all_single(receive.view(torch.uint8), flat.view(torch.uint8), received, sent, group=group)
        return reduce(receive.to(accumulator), "(rank element) -> element", "sum", rank=world)
    send, nothing = list(flat.split(counts)), flat[:0]
    total: Tensor = send[rank].to(accumulator, copy=True)
    send[rank] = nothing
    parts = [nothing if r == rank else flat.new_empty(counts[rank]) for r in range(world)]
    _wait_for(_point_to_point([p.view(torch.uint8) for p in send], [p.view(torch.uint8) for p in parts], rank, group))
    for r, part in enumerate(parts):
        if r != rank:
            total += part.to(accumulator)
    return total


def _point_to_point(
    send: Sequence[Tensor], receive: Sequence[Tensor], rank: int, group: Any, tag: int = _ROWS_TAG
) -> Works:
    """`send[r]` to each rank r, `receive[r]` from it; nothing where a block is empty."""
    receive[rank].copy_(send[rank])
    peers = [(rank + step) % len(send) for step in range(1, len(send))]
    receives = [
        dist.irecv(receive[peer], src=_global_rank(peer, group), group=group, tag=tag)
        for peer in reversed(peers)
        if receive[peer].numel() > 0
    ]
    sends = [
        dist.isend(send[peer], dst=_global_rank(peer, group), group=group, tag=tag)
        for peer in peers
        if send[peer].numel() > 0
    ]
    return [*receives, *sends]


def _overlaps(a: Sequence[int], b: Sequence[int], scale: int) -> list[list[int]]:
    """How much of each block of one division lies in each block of another, times `scale`."""
    ends_a, ends_b = list(accumulate(a)), list(accumulate(b))
    return [
        [scale * max(0, min(end_a, end_b) - max(end_a - n, end_b - m)) for end_b, m in zip(ends_b, b, strict=True)]
        for end_a, n in zip(ends_a, a, strict=True)
    ]


# ------------------------------------------------------------------ NCCL


def _exchange_on_nccl(flat: Tensor, counts: list[int], rank: int, group: Any) -> None:
    _all_gather_single(flat, flat.split(counts)[rank].clone(), group=group)


def _gather_on_nccl(flat: Tensor, counts: list[int], rank: int, group: Any) -> Works:
    blocks = flat.split(counts)
    if len(set(counts)) == 1:
        return [_all_gather_single(flat, blocks[rank], group=group, async_op=True)]
    # grouped broadcasts, straight into these views
    return [dist.all_gather(list(blocks), blocks[rank], group=group, async_op=True)]


def _sum_on_nccl(flat: Tensor, counts: list[int], rank: int, group: Any) -> Tensor:
    wide = flat.to(_accumulator(flat.dtype))
    own = wide.new_empty(counts[rank])
    if len(set(counts)) == 1:
        _reduce_scatter_single(own, wide, group=group)
    else:  # grouped reduces, straight from these views
        dist.reduce_scatter(own, list(wide.split(counts)), group=group)
    return own


def _renamed(new: str, old: str) -> Callable[..., Any]:
    """A collective by its newer name, where torch has that; nothing where torch has no collectives."""
    return getattr(dist, new, getattr(dist, old, dist.is_available))


_all_gather_single = _renamed("all_gather_single", "all_gather_into_tensor")
_reduce_scatter_single = _renamed("reduce_scatter_single", "reduce_scatter_tensor")


# ------------------------------------------------------------------ any backend


def _exchange_by_broadcasts(flat: Tensor, counts: list[int], rank: int, group: Any) -> None:
    _wait_for(_gather_by_broadcasts(flat, counts, rank, group))


def _gather_by_broadcasts(flat: Tensor, counts: list[int], rank: int, group: Any) -> Works:
    blocks = enumerate(flat.split(counts))
    return [dist.broadcast(b, src=_global_rank(r, group), group=group, async_op=True) for r, b in blocks]


def _sum_by_all_reduce(flat: Tensor, counts: list[int], rank: int, group: Any) -> Tensor:
    total = flat.to(_accumulator(flat.dtype), copy=True)
    dist.all_reduce(total, group=group)
    own: Tensor = total.split(counts)[rank]
    return own.clone()  # a view would keep all of it alive


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are taken: at least 32 bits, and one that every backend can add."""
    if dtype.is_floating_point:
        return dtype if torch.finfo(dtype).bits >= 32 else torch.float32
    return torch.int64


def _global_rank(rank: int, group: Any) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)


def _wait_for(works: Works) -> None:
    for work in works:
        if work is not None:
            work.wait()


class Transport(NamedTuple):
    """How a backend moves headers (blocks of one length), gathers rows, and sums them."""

    exchange: Callable[[Tensor, list[int], int, Any], None]
    gather: Callable[[Tensor, list[int], int, Any], Works]
    total: Callable[[Tensor, list[int], int, Any], Tensor]


BROADCASTS = Transport(_exchange_by_broadcasts, _gather_by_broadcasts, _sum_by_all_reduce)
TRANSPORTS = {
    "gloo": Transport(_exchange_on_gloo, _gather_on_gloo, _sum_on_gloo),
    "nccl": Transport(_exchange_on_nccl, _gather_on_nccl, _sum_on_nccl),
}
