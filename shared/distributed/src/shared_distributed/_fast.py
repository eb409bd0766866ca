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
from functools import cache, cached_property
from itertools import accumulate, count
from math import prod
from operator import index
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn import Parameter

from ._agree import _Call
from ._errors import BadInputError
from ._faults import failures_named
from ._world import _graph_break, _long_tensor

_SMALL = 2 << 20  # bytes: above it, an all-to-all's copies cost more than its single operation saves
_SLOTS = 64 << 10  # bytes: beside the headers of all ranks together, for rows that are small enough to come along
_HEADER = 3  # ints: those that `agree` exchanges first
_ALIGNED = 16  # bytes: where a tensor of any dtype can start
_SLOT = 32  # bytes: where the slot starts, behind the header
_LATEST = -1  # the ticket of whatever came last
_TENSORS = 61  # of a container, agreed on in one exchange: a bit each, beside another
_collected = threading.local()  # the steps that finish a thread's gathers, while it collects them
_tickets = count(1)
_CPU = torch.device("cpu")


class _Arrived(threading.local):
    """What this thread's last exchange brought: its ticket, and for each tensor what to join, until asked for."""

    ticket, parts = 0, list[tuple[Tensor, ...]]()


_arrived = _Arrived()


class FastCall(_Call):
    """A call that takes its backend's own transports, and names the ranks that fail in them.

    Rows that fit into a slot beside the header come with it, in one round. The slot is there in every exchange and
    depends on the number of ranks alone, so that ranks in different calls still meet in equal lengths.
    """

    ticket = 0  # of the exchange that brought this call's rows, if one did

    def _replace(self, **changes: Any) -> "FastCall":
        call = super()._replace(**changes)
        vars(call).update(vars(self))
        return call

    @cached_property
    def backends(self) -> dict[str, str]:
        """As the heart reads them, once a call."""
        return super().backends

    @_graph_break
    def agree(self, op: str, *xs: Any, check: bool = False) -> tuple[Any, ...]:
        """The call and its tensors, as the heart agrees on them; many tensors, so many at a time."""
        call, *agreed = super().agree(op, *xs[:_TENSORS], check=check)
        for start in range(_TENSORS, len(xs), _TENSORS):
            others, *more = super().agree(op, *xs[start : start + _TENSORS], check=check)
            if others.sizes != call.sizes:  # so every rank finds
                raise BadInputError(f"expected tensors of one size along dim, got {call.sizes} and {others.sizes}")
            agreed += more
        if len(xs) > _TENSORS:
            call.ticket, _arrived.parts = 0, []
        elif call.ticket and len(xs) > 1:
            # they are asked for in this order: those with a summed gradient first
            later = [self.summed and not (x.requires_grad and torch.is_grad_enabled()) for x in agreed]
            _arrived.parts = [_arrived.parts[i] for i in sorted(range(len(agreed)), key=later.__getitem__)]
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
            _check_copies(x.dtype)
            if type(x) not in (Tensor, Parameter):
                x.new_empty(0).copy_(x.detach().flatten().narrow(0, 0, 0))  # raises for what cannot be gathered
            words.append(text.removeprefix(f"{op} of "))
            found.append(size)
        if len(set(found)) != 1:
            raise ValueError(f"expected tensors of one size along dim, got sizes {found}")
        return f"{op} of {'; '.join(words)}", size, sizes

    def exchange(self, ints: list[int], xs: Any) -> list[list[int]]:
        """Every rank's ints, as the heart does it; with the header also its rows, unless the ranks know the sizes."""
        if torch.is_inference_mode_enabled():  # gloo of torch 2.0 cannot gather into inference tensors
            with torch.inference_mode(False):
                return self.exchange(ints, xs)
        if len(ints) == _HEADER:
            return self.exchange_with_rows(ints, xs)
        with failures_named(lambda: "exchange of words", self.group):
            return super().exchange(ints, xs)

    def exchange_with_rows(self, header: list[int], xs: Any) -> list[list[int]]:
        """Every rank's header; and every rank's rows, for `gather` to join, where the slots have room for all."""
        rank, world, backends = dist.get_rank(self.group), dist.get_world_size(self.group), self.backends
        devices = [x.device for x in xs if isinstance(x, Tensor) and x.device.type in backends]
        device = _CPU if "cpu" in backends else next(iter([*devices, torch.device(next(iter(backends)))]))
        riders = xs if header[0] and self.sizes is None and all(d.type == device.type for d in devices) else ()
        widths = [_row_bytes(x, self.dim) for x in riders]
        stride = _SLOT + _SLOTS // world // _ALIGNED * _ALIGNED  # bytes of a header and its slot
        ints = _long_tensor(header, device)
        sent = ints.new_zeros((world, stride // 8))
        headers, flat = sent.narrow(1, 0, _HEADER), sent.view(-1)
        headers.copy_(ints)  # into every row: over a fake group, which moves nothing, all ranks then seem alike
        for x, ((at, length),) in zip(riders, _spans(widths, [header[1]], stride), strict=False):
            x = x.detach() if self.dim == 0 else x.detach().movedim(int(self.dim), 0)  # a bool too, which torch refuses
            own = flat.view(x.dtype).narrow(0, (rank * stride + at) // x.element_size(), length // x.element_size())
            own.view(x.shape).copy_(x)
        with failures_named(lambda: "exchange of sizes", self.group):
            self.spread(flat.view(torch.uint8), [stride] * world)
        by_rank = headers.tolist()
        spans = _spans(widths, [size for _, size, _ in by_rank], stride)
        # where all rows came, so every rank finds; else nothing is left of an earlier call's
        cuts = [_cuts(of_x, stride, x.element_size()) for x, of_x in zip(riders, spans, strict=False)]
        _arrived.parts = [flat.view(x.dtype).split(cut)[1::3] for x, cut in zip(riders, cuts, strict=False)]
        self.ticket = _arrived.ticket = next(_tickets) if spans else 0
        return by_rank

    def spread(self, rows: Tensor, counts: list[int]) -> None:
        """What an exchange sends, as many bytes from every rank; rows of their own go through `gather`."""
        if self.transport(rows.device) is TRANSPORTS["gloo"] and len(counts) > 2:
            # not all-to-all: one that meets another length aborts
            _gather_and_broadcast(rows.view(len(counts), -1), dist.get_rank(self.group), self.group)
        else:
            super().spread(rows, counts)

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
                with torch.inference_mode(target.is_inference()), torch.no_grad():
                    target.copy_(rows)

        if self.ticket in (_arrived.ticket, _LATEST) and _arrived.parts:
            torch.cat([part.to(x.device) for part in _arrived.parts.pop(0)], out=rows.view(-1))
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
def _check_copies(dtype: torch.dtype) -> None:
    """Raise torch's error for a dtype that it cannot copy, such as uint4."""
    torch.empty(1, dtype=dtype, device="cpu").copy_(torch.empty(1, dtype=dtype, device="cpu"))


def _spans(widths: list[int], sizes: list[int], end: int) -> list[list[tuple[int, int]]]:
    """For each tensor, where each rank's rows begin behind its header, and their bytes; none without room for all."""
    spans, starts = [], [_SLOT] * len(sizes)
    for width in widths:
        lengths = [width * size for size in sizes]
        spans.append(list(zip(starts, lengths, strict=True)))
        starts = [-(-(at + length) // _ALIGNED) * _ALIGNED for at, length in spans[-1]]
    return spans if max(starts) <= end else []


def _cuts(spans: list[tuple[int, int]], stride: int, size: int) -> list[int]:
    """What lies before, in and behind each of these spans, one in every stride: counts of elements of a size."""
    return [n // size for at, length in spans for n in (at, length, stride - at - length)]


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
        numels, longest = [n // own.element_size() for n in counts], max(counts) // own.element_size()
        with torch.inference_mode(False):  # gloo of torch 2.0 cannot gather into inference tensors
            padded = own.new_zeros((world, longest))
            padded.select(0, rank).narrow(0, 0, own.numel()).view(own.shape).copy_(own)
            _gather_and_broadcast(padded.view(torch.uint8), rank, group)
        cuts = [n for numel in numels for n in (numel, longest - numel)]
        torch.cat(padded.view(-1).split(cuts)[::2], out=rows.view(-1))
        return []
    if sum(counts) >= _SMALL:
        return _gather_by_broadcasts(rows, own, sizes, rank, group)
    sent = own.new_empty((world, *own.shape)).copy_(own)  # also resolves strides and conjugation
    splits = counts, [counts[rank]] * world
    return [dist.all_to_all_single(_as_bytes(rows), _as_bytes(sent), *splits, group, async_op=True)]


def _gather_and_broadcast(blocks: Tensor, rank: int, group: Any) -> None:
    """Every rank's block of one length, through the first rank."""
    root = _global_rank(0, group)
    into = list(blocks.unbind()) if rank == 0 else None
    gathered = dist.gather(blocks.select(0, rank), into, root, group, async_op=True)
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


def _gather_by_broadcasts(rows: Tensor, own: Tensor, sizes: Sequence[int], rank: int, group: Any) -> list[Any]:
    blocks = enumerate(_blocks_with_own(rows, own, sizes, rank))
    return [dist.broadcast(block, _global_rank(r, group), group, async_op=True) for r, block in blocks]


def _blocks_with_own(rows: Tensor, own: Tensor, sizes: Sequence[int], rank: int) -> Sequence[Tensor]:
    """Every rank's bytes of `rows`, this rank's filled."""
    rows.narrow(0, sum(sizes[:rank]), sizes[rank]).copy_(own)  # also resolves strides and conjugation
    row = _row_bytes(own, 0)
    return _as_bytes(rows).split([n * row for n in sizes])


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
