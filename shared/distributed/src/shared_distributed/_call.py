# SPDX-License-Identifier: MIT
"""One call over one backend: what `_gloo` and `_nccl` share, and every other backend, by the heart's way."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from ._agree import _Claim
from ._blocks import (
    as_bytes,
    dtype_of_sums,
    in_rank_order,
    is_in_rank_order,
    join,
    join_pieces,
    resized,
    row_bytes,
    row_elements,
)
from ._faults import failures_named
from ._ranks import _backends, _Ranks
from ._usable import refuse_batched


class GroupFacts:
    """What is remembered of a process group as long as it lives. Asking torch takes longer than a small message."""

    def __init__(self, group: Any) -> None:
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.backends = _backends(group)
        self.buffers: Any = None  # of messages over gloo, once there are any
        self.ways: dict[str, type[Call]] = {}  # by the device type of rows; "header": that of headers


_known_groups = WeakKeyDictionary[Any, GroupFacts]()


def facts_of(group: Any) -> GroupFacts:
    """Torch's own error where there is no process group."""
    if group is None:
        dist.get_rank()  # raises
    facts = _known_groups.get(group)
    if facts is None:
        facts = _known_groups[group] = GroupFacts(group)
    return facts


class Call:
    """One call of a group's ranks. A backend adds `exchange`, `exchange_words`, `send_rows` and `sum`."""

    # starts to send this rank's part to all ranks, and to receive theirs; the parts are views of `rows`
    send_rows: Callable[[Tensor, Sequence[Tensor]], list[Any]]  # (rows, parts) -> works

    def __init__(self, group: Any, xs: Sequence[Any], dim: Any) -> None:
        self.group = group
        self.facts = facts_of(group)
        self.rank = self.facts.rank
        self.world = self.facts.world
        self.backends = self.facts.backends
        self.xs = xs  # tensors whose rows may be sent with the header, and their dim
        self.dim = dim
        self.numbers: Sequence[int] = ()  # that are sent with the header where they fit; as many on every rank
        self.everyones_numbers: list[list[int]] = []  # if they were
        self.arrived: list[list[Tensor]] = []  # every rank's rows of tensors that are moved next
        self.unfinished: list[Callable[[], None]] | None = None  # a list if gathers are only to be started

    @property
    def later(self) -> "Call":
        """The ranks in the derivatives of an all-to-all: these, unless they are traced."""
        return self

    def gather(self, x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
        """`(… n_r …) -> (… sum(n) …)`, contiguous. Carries no gradient."""
        refuse_batched(x)
        x = x.detach()
        gathered = x.new_empty(resized(x, dim, sum(sizes)))
        if self.arrived:
            join(self.arrived.pop(0), x, dim, sizes, gathered)
            return gathered

        in_place = is_in_rank_order(x, dim)
        rows = gathered.view(-1) if in_place else x.new_empty(gathered.numel())
        parts = rows.split([size * row_elements(x, dim) for size in sizes])
        parts[self.rank].view(x.shape).copy_(x)  # also resolves strides and conjugation

        def finish() -> None:
            with failures_named("gather", self.group, x, dim, sizes):
                for work in works:
                    work.wait()
            if not in_place:
                join(parts, x, dim, sizes, gathered)

        def finish_later() -> None:
            with torch.inference_mode(gathered.is_inference()), torch.no_grad():
                finish()
            keep_for_this_stream(rows)
            keep_for_this_stream(gathered)

        with failures_named("gather", self.group, x, dim, sizes):
            works = self.send_rows(rows, parts)
        if works and self.unfinished is not None:
            self.unfinished.append(finish_later)
        else:
            finish()
        return gathered

    def swap(self, x: Tensor, dim: int, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """`(… sum(sent) …) -> (… sum(received) …)`: `sent[r]` rows to rank r, `received[r]` from it. No gradient."""
        refuse_batched(x)
        x = x.detach().resolve_conj()
        if self.arrived:
            return join_pieces(self.arrived.pop(0), x, dim, self.everyones_numbers, self.rank)
        swapped = x.new_empty(resized(x, dim, sum(received)))
        in_place = is_in_rank_order(x, dim)
        rows = swapped.view(-1) if in_place else x.new_empty(swapped.numel())
        row = row_bytes(x, dim)
        bytes_sent = [size * row for size in sent]
        bytes_received = [size * row for size in received]
        own = as_bytes(in_rank_order(x, dim, sent))
        with failures_named("all-to-all", self.group, x, dim, sent):
            dist.all_to_all_single(as_bytes(rows), own, bytes_received, bytes_sent, group=self.group)
        if not in_place:
            parts = rows.split([size * row_elements(x, dim) for size in received])
            join(parts, x, dim, received, swapped)
        return swapped


def keep_for_this_stream(buffer: Tensor) -> None:
    """A gather may be waited for on another stream than it was started on: then its memory must not be reused yet."""
    if buffer.is_cuda and torch.cuda.is_available():
        buffer.record_stream(torch.cuda.current_stream(buffer.device))


class AnyBackend(Call):
    """By the heart's way: broadcasts and all-reduce. For backends without a faster one, and gloo off the CPU."""

    def heart(self) -> _Ranks:
        """The heart's ranks of this group."""
        return _Ranks(self.xs[0] if self.xs else None, self.group)

    def exchange(self, claim: _Claim) -> list[list[int]]:
        """Every rank's claim."""
        with failures_named("exchange of sizes", self.group):
            return self.heart().exchange(claim)

    def exchange_words(self, words: str) -> list[str]:
        """Every rank's words."""
        with failures_named("exchange of words", self.group):
            return self.heart().exchange_words(words)

    def gather(self, x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
        """`(… n_r …) -> (… sum(n) …)`."""
        with failures_named("gather", self.group, x, dim, sizes):
            return self.heart().gather(x, dim, sizes)

    def swap(self, x: Tensor, dim: int, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """As in `Call` where there is an all-to-all; else by a gather of all rows."""
        if self.backends[x.device.type] == "gloo":
            return super().swap(x, dim, sent, received)
        with failures_named("all-to-all", self.group, x, dim, sent):
            ranks = self.heart()
            by_rank = ranks.exchange(sent)
            sizes = [sum(sent_by_one) for sent_by_one in by_rank]
            gathered = ranks.gather(x, dim, sizes)
        pieces = []
        for rows, sent_by_one in zip(gathered.split(sizes, dim), by_rank, strict=True):
            pieces.append(rows.split(sent_by_one, dim)[self.rank].contiguous().view(-1))
        swapped = x.new_empty(resized(x, dim, sum(received)))
        join(pieces, x, dim, received, swapped)
        return swapped

    def sum(self, x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`, of any dtype."""
        wide = x if x.is_complex() else x.to(dtype_of_sums(x.dtype))
        with failures_named("sum over ranks", self.group, x, dim, sizes):
            return self.heart().sum(wide, dim, sizes).to(x.dtype)
