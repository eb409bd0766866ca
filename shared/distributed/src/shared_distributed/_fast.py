# SPDX-License-Identifier: MIT
"""Faster transports, by backend, than the heart's broadcasts and all-reduce; errors that name the ranks that fail.

Whatever is chosen here is chosen from what every rank shares: sizes, bytes a row, backend, world
size. Never from contiguity, requires_grad or anything else that a rank has to itself.

| backend | what                                     | how                               | ms, and another way's  |
|---------|------------------------------------------|-----------------------------------|------------------------|
| gloo    | headers of more than two ranks, and      | gather, then broadcast            | 4.1, all-to-all 7.0    |
|         | gathers, 64 KiB if padded to the longest |                                   |                        |
|         | gather, below 2 MiB in all               | one all-to-all, repeated input    | 7.1, broadcasts 10.0   |
|         | gather, larger                           | broadcasts, as in the heart       | 22.6, all-to-all 28.1  |
|         | sum                                      | one all-to-all, then a local sum  | 26.6, all-reduce 48.1  |
|         | sum, larger, and one rank has over 2 / W | even shares first, then to owners | 30.7, all-reduce 49.0  |
| nccl    | gather                                   | one all-gather, uneven or even    | not measured           |
|         | sum                                      | one reduce-scatter                | not measured           |

Medians at 8 ranks on 2 cores: 8 KiB, 64 KiB, then 1 MiB a rank. Point to point gathers take 7.0, 6.8 and 20.9 ms, and
its sums are slower than all-to-all.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, count
from math import prod
from operator import index
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from ._agree import _Call
from ._faults import failures_named
from ._world import _graph_break

_SMALL = 2 << 20  # bytes: above it, an all-to-all's copies cost more than its single operation saves
_SLOTS = 64 << 10  # bytes: beside the headers of all ranks together, for rows that are small enough to come along
_HEADER = 4  # ints: those that `agree` exchanges first
_ALIGNED = 16  # bytes: where a tensor of any dtype can start
_TENSORS = 61  # of a container, agreed on in one exchange: a bit each, beside another
_collected = threading.local()  # the steps that finish a thread's gathers, while it collects them
_tickets = count(1)


class _Arrived(threading.local):
    """What this thread's last exchange brought along: its ticket, and each tensor's bytes by rank, until asked for."""

    ticket, blocks = 0, list[tuple[Tensor, ...]]()


_arrived = _Arrived()


class FastCall(_Call):
    """A call that takes its backend's own transports, and names the ranks that fail in them.

    Rows that fit into a slot beside the header come with it, in one round. The slot is there in every exchange and
    depends on the number of ranks alone, so that ranks in different calls still meet in equal lengths.
    """

    ticket = 0  # of the exchange that brought this call's rows, if one did
    riders: Any = None  # in the exchange under way

    def _replace(self, **changes: Any) -> "FastCall":
        call = super()._replace(**changes)
        call.ticket = self.ticket
        return call

    @property
    def backends(self) -> dict[str, str]:
        """As the heart reads them, once for each configuration."""
        return _backends(str(dist.get_backend_config(self.group)))

    @_graph_break
    def agree(self, op: str, *xs: Any, check: bool = False) -> tuple[Any, ...]:
        """The call and its tensors, as the heart agrees on them; many tensors, so many at a time."""
        call, *agreed = super().agree(op, *xs[:_TENSORS], check=check)
        for start in range(_TENSORS, len(xs), _TENSORS):
            agreed += super().agree(op, *xs[start : start + _TENSORS], check=check)[1:]
        if len(xs) > _TENSORS:
            call.ticket = 0
        elif call.ticket:
            # they are asked for in this order: those with a summed gradient first
            later = [self.summed and not (x.requires_grad and torch.is_grad_enabled()) for x in agreed]
            _arrived.blocks = [_arrived.blocks[i] for i in sorted(range(len(agreed)), key=later.__getitem__)]
        return call, *agreed

    def describe(self, op: str, *xs: Any) -> tuple[str, int, Any]:
        """The words for one tensor or several. An error that the caller found is raised here: so all ranks hear it."""
        words, found = [], []
        for x in xs:
            if isinstance(x, Exception):
                raise x
            text, size, sizes = super().describe(op, x)
            tracked = torch._C._functorch.is_gradtrackingtensor(x) and x.requires_grad
            if tracked or torch._C._functorch.is_batchedtensor(x) or unpack_dual(x).tangent is not None:
                raise TypeError("torch.func and forward mode do not go through a gather: use torch.autograd.grad")
            words.append(text.removeprefix(f"{op} of "))
            found.append(size)
        if len(set(found)) != 1:
            raise ValueError(f"expected tensors of one size along dim, got sizes {found}")
        return f"{op} of {'; '.join(words)}", size, sizes

    def exchange(self, ints: list[int], xs: Any) -> list[list[int]]:
        """Every rank's ints, as the heart does it; with the header also its rows, unless the ranks know the sizes."""
        self.riders = None if len(ints) != _HEADER else xs if ints[0] and self.sizes is None else ()
        self.size, self.widths = ints[1], [_row_bytes(x, self.dim) for x in self.riders or ()]
        with torch.inference_mode(False), failures_named(lambda: "exchange of sizes", self.group):
            by_rank = super().exchange(ints, xs)  # gloo of torch 2.0 cannot gather into inference tensors
        spans = [self.spans(size) for _, size, *_ in by_rank] if self.riders else []
        if all(spans) and spans:  # so every rank finds
            self.ticket = _arrived.ticket = next(_tickets)
            pairs = zip(self.slots.unbind(), spans, strict=True)
            blocks = [[slot.narrow(0, *span) for span in of_rank] for slot, of_rank in pairs]
            _arrived.blocks = list(zip(*blocks, strict=True))  # of each tensor, by rank
        return by_rank

    def spans(self, size: int) -> list[tuple[int, int]]:
        """Start and length, in a slot, of so many rows of each tensor; none where there is no room for all."""
        lengths = [width * size for width in self.widths]
        starts = [0, *accumulate(-(-length // _ALIGNED) * _ALIGNED for length in lengths)]
        return list(zip(starts, lengths, strict=False)) if starts[-1] <= self.slots.shape[1] else []

    def spread(self, rows: Tensor, counts: list[int]) -> None:
        """What an exchange sends, headers beside their slots; rows of their own go through `gather`."""
        rank, world = dist.get_rank(self.group), len(counts)
        sent = rows = rows.view(world, -1)
        if self.riders is not None:
            if any(x.device.type != rows.device.type for x in self.riders):
                self.riders = ()
            sent = rows.new_zeros((world, counts[0] + _SLOTS // world // _ALIGNED * _ALIGNED))
            headers, self.slots = sent.split([counts[0], sent.shape[1] - counts[0]], 1)
            headers.copy_(rows)
            for x, span in zip(self.riders, self.spans(self.size), strict=False):
                x = x.detach().movedim(int(self.dim), 0)  # a bool too, which torch refuses
                self.slots.select(0, rank).narrow(0, *span).view(x.dtype).view(x.shape).copy_(x)
        if self.transport(rows.device) is TRANSPORTS["gloo"] and world > 2:
            _gather_and_broadcast(sent, rank, self.group)  # not all-to-all: one that meets another length aborts
        else:
            super().spread(sent.view(-1), [sent.shape[1]] * world)
        if sent is not rows:
            rows.copy_(headers)

    def transport(self, device: torch.device) -> "Transport":
        """What TRANSPORTS has for the backend of a device. Off the CPU, gloo has broadcast and all-reduce only."""
        backend = self.backends[device.type]
        return BROADCASTS if backend == "gloo" and device.type != "cpu" else TRANSPORTS.get(backend, BROADCASTS)

    @_graph_break
    def gather(self, x: Tensor) -> Tensor:
        """`(… n_r …) -> (… sum(n) …)`, as the heart does it; or, while steps are collected, a start of it."""
        dim, x = index(self.dim) % x.ndim, x.detach().to_dense() if x.is_sparse else x.detach()
        out = x.new_empty((*x.shape[:dim], sum(self.sizes), *x.shape[dim + 1 :]))
        own, target = (x, out) if dim == 0 else (x.movedim(dim, 0), out.movedim(dim, 0))
        rows = target if target.is_contiguous() else target.new_empty(target.shape)
        works: list[Any] = []

        def operation() -> str:
            return f"gather of {x.dtype} {(*x.shape[:dim], self.sizes, *x.shape[dim + 1 :])} along dim {dim}"

        def finish() -> None:
            with failures_named(operation, self.group):
                for work in works:
                    work.wait()
            if rows is not target:
                with torch.no_grad():
                    target.copy_(rows)

        if self.ticket and self.ticket == _arrived.ticket and _arrived.blocks:
            torch.cat([block.to(x.device) for block in _arrived.blocks.pop(0)], out=rows.view(-1).view(torch.uint8))
            finish()
            return out
        with failures_named(operation, self.group):
            works = self.transport(x.device).gather(rows, own, self.sizes, dist.get_rank(self.group), self.group)
        steps: list[Callable[[], None]] | None = getattr(_collected, "steps", None)
        finish() if steps is None else steps.append(finish)
        return out

    @_graph_break
    def sum(self, x: Tensor) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`, of any dtype: numbers narrower than 32 bits are summed in 32 bits or more."""
        dim, x = index(self.dim) % x.ndim, x.detach().to_dense() if x.is_sparse else x.detach()
        if x.is_complex():  # NCCL adds none
            return torch.view_as_complex(self._replace(dim=dim).sum(torch.view_as_real(x.resolve_conj()))).clone()
        rank, size = dist.get_rank(self.group), prod(x.shape[:dim]) * prod(x.shape[dim + 1 :])
        counts = [n * size for n in self.sizes]
        if prod(x.shape[:dim]) == 1 and x.is_contiguous() and not x.is_neg():
            flat = x.as_strided((x.numel(),), (1,))  # view(-1) would keep the odd stride of a single element
        else:  # blocks in rank order, each one contiguous: (n_0 …) (n_1 …) …
            flat = x.new_empty(x.numel())
            for block, part in zip(flat.split(counts), x.split(self.sizes, dim), strict=True):
                block.view(part.shape).copy_(part)
        own = x.new_empty((*x.shape[:dim], self.sizes[rank], *x.shape[dim + 1 :]))
        shape = (*x.shape[:dim], self.sizes, *x.shape[dim + 1 :])
        with failures_named(lambda: f"sum over ranks of {x.dtype} {shape} along dim {dim}", self.group):
            self.transport(x.device).total(flat, counts, rank, self.group, own.view(-1))
        return own


@cache
def _backends(configuration: str) -> dict[str, str]:
    return dict(entry.split(":", 1) for entry in configuration.split(","))


def _row_bytes(x: Tensor, dim: int) -> int:
    dim = index(dim) % x.ndim
    return prod(x.shape[:dim]) * prod(x.shape[dim + 1 :]) * x.element_size()


@contextmanager
def steps_collected() -> Iterator[list[Callable[[], None]]]:
    """Gathers in here are only started; each step of the list finishes one."""
    outer, _collected.steps = getattr(_collected, "steps", None), []
    try:
        yield _collected.steps
    finally:
        _collected.steps = outer


def _gather_on_gloo(rows: Tensor, own: Tensor, sizes: Sequence[int], rank: int, group: Any) -> list[Any]:
    world, row = len(sizes), _row_bytes(own, 0)
    counts = [n * row for n in sizes]
    if world > 2 and world * max(counts) <= _SLOTS:
        with torch.inference_mode(False):  # gloo of torch 2.0 cannot gather into inference tensors
            padded = rows.new_zeros((world, max(sizes), *own.shape[1:]))
            padded[rank, : sizes[rank]].copy_(own)
            blocks = _as_bytes(padded).view(world, max(counts))
            _gather_and_broadcast(blocks, rank, group)
        torch.cat([block[:n] for block, n in zip(blocks, counts, strict=True)], out=_as_bytes(rows))
        return []
    if sum(counts) >= _SMALL:
        return _gather_by_broadcasts(rows, own, sizes, rank, group)
    sent = own.new_empty((world, *own.shape)).copy_(own)  # also resolves strides and conjugation
    splits = counts, [counts[rank]] * world
    return [dist.all_to_all_single(_as_bytes(rows), _as_bytes(sent), *splits, group, async_op=True)]


def _gather_and_broadcast(blocks: Tensor, rank: int, group: Any) -> None:
    """Every rank's block of one length, through the first rank."""
    root = _global_rank(0, group)
    gathered = dist.gather(blocks[rank].clone(), list(blocks) if rank == 0 else None, root, group, async_op=True)
    if rank == 0:
        gathered.wait()
    dist.broadcast(blocks, root, group)
    gathered.wait()


def _sum_on_gloo(flat: Tensor, counts: list[int], rank: int, group: Any, own: Tensor) -> None:
    world, total = len(counts), sum(counts)
    # all-to-all sends the busiest rank (W - 1) max(n) rows; even shares, twice (W - 1) / W N
    if total * flat.element_size() <= _SMALL or world * max(counts) <= 2 * total:
        _swap_and_sum(flat, counts, rank, group, own)
        return
    shares = [total // world + (r < total % world) for r in range(world)]
    share = flat.new_empty(shares[rank])
    _swap_and_sum(flat, shares, rank, group, share)
    overlaps = _overlaps(shares, counts)  # [share][owner]
    _swap(share, overlaps[rank], own, [row[rank] for row in overlaps], group)


def _swap_and_sum(flat: Tensor, counts: list[int], rank: int, group: Any, own: Tensor) -> None:
    received = flat.new_empty(len(counts) * counts[rank])
    _swap(flat, counts, received, [counts[rank]] * len(counts), group)
    by_rank, dtype = received.view(len(counts), counts[rank]), _accumulator(flat.dtype)
    torch.sum(by_rank, 0, out=own) if dtype == own.dtype else own.copy_(by_rank.sum(0, dtype=dtype))


def _swap(flat: Tensor, sent: list[int], into: Tensor, received: list[int], group: Any) -> None:
    """So many elements to each rank, and so many from it; as bytes, since gloo knows few dtypes."""
    size = flat.element_size()
    splits = [n * size for n in received], [n * size for n in sent]
    dist.all_to_all_single(into.view(torch.uint8), flat.view(torch.uint8), *splits, group=group)


def _overlaps(a: list[int], b: list[int]) -> list[list[int]]:
    """How much of each block of one division lies in each block of another."""
    spans = [list(zip([0, *accumulate(sizes)], accumulate(sizes), strict=False)) for sizes in (a, b)]
    return [[max(0, min(end, last) - max(start, first)) for first, last in spans[1]] for start, end in spans[0]]


def _gather_on_nccl(rows: Tensor, own: Tensor, sizes: Sequence[int], rank: int, group: Any) -> list[Any]:
    blocks = _blocks_with_own(rows, own, sizes, rank)
    if len(set(sizes)) == 1:
        all_gather = _renamed("all_gather_single", "all_gather_into_tensor")
        return [all_gather(_as_bytes(rows), blocks[rank], group, async_op=True)]
    # grouped broadcasts, straight into these views
    return [dist.all_gather(blocks, blocks[rank], group, async_op=True)]


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


def _gather_by_broadcasts(rows: Tensor, own: Tensor, sizes: Sequence[int], rank: int, group: Any) -> list[Any]:
    blocks = enumerate(_blocks_with_own(rows, own, sizes, rank))
    return [dist.broadcast(block, _global_rank(r, group), group, async_op=True) for r, block in blocks]


def _blocks_with_own(rows: Tensor, own: Tensor, sizes: Sequence[int], rank: int) -> list[Tensor]:
    """Every rank's bytes of `rows`, this rank's filled."""
    parts = rows.split(sizes)
    parts[rank].copy_(own)
    return [_as_bytes(part) for part in parts]


def _as_bytes(rows: Tensor) -> Tensor:
    return rows.view(-1).view(torch.uint8)


def _sum_by_all_reduce(flat: Tensor, counts: list[int], rank: int, group: Any, own: Tensor) -> None:
    total = flat.to(_accumulator(flat.dtype), copy=True)
    dist.all_reduce(total, group=group)
    own.copy_(total.split(counts)[rank])


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are taken: at least 32 bits, and one that every backend can add."""
    if dtype.is_floating_point:
        return dtype if torch.finfo(dtype).bits >= 32 else torch.float32
    return torch.int64


def _global_rank(rank: int, group: Any) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)


class Transport(NamedTuple):
    """How a backend gathers own rows into those of all ranks, and sums blocks of elements into own block."""

    gather: Callable[[Tensor, Tensor, Sequence[int], int, Any], list[Any]]
    total: Callable[[Tensor, list[int], int, Any, Tensor], None]


BROADCASTS = Transport(_gather_by_broadcasts, _sum_by_all_reduce)
TRANSPORTS = {"gloo": Transport(_gather_on_gloo, _sum_on_gloo), "nccl": Transport(_gather_on_nccl, _sum_on_nccl)}
