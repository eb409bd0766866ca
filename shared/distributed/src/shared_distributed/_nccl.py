# SPDX-License-Identifier: MIT
"""Over NCCL: one all-gather, one reduce-scatter. Rows of small gathers come in slots beside the headers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._agree import _Claim
from ._blocks import (
    ALIGNMENT,
    HEADER,
    NUMBER,
    as_bytes,
    block_of,
    dtype_of_sums,
    is_in_rank_order,
    read_rows,
    resized,
    row_bytes,
    row_elements,
    write_rows,
)
from ._call import Call
from ._errors import BadInputError
from ._faults import failures_named
from ._ranks import _header_device, _is_nccl, _long_tensor, _Ranks
from ._usable import refuse_batched

SLOTS = 64 << 10  # bytes of all ranks' slots


class Nccl(Call):
    """A call of ranks on devices that NCCL serves."""

    def exchange(self, claim: _Claim) -> list[list[int]]:
        """Every rank's claim; every rank's rows as well, if they fit into every rank's slot."""
        device = self.device()
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise BadInputError("a CUDA graph cannot capture an exchange of sizes: pass `sizes`")
        is_usable = claim.digest != 0
        xs = self.xs if is_usable and all(x.device == device for x in self.xs) else []
        slot = HEADER + SLOTS // self.world // ALIGNMENT * ALIGNMENT
        sends_numbers = HEADER + NUMBER * len(self.numbers) <= slot
        numbers = self.numbers if sends_numbers else ()
        block = block_of([row_bytes(x, self.dim) for x in xs], claim.size, len(numbers))
        sends_rows = bool(xs) and sends_numbers and block.end <= slot

        slots = torch.empty((self.world, slot), dtype=torch.uint8, device=device)
        headers = slots.view(torch.long).narrow(1, 0, 6 + len(numbers))
        headers.select(0, self.rank).copy_(_long_tensor([*claim, 0, sends_rows, *numbers], device))
        if sends_rows:
            for x, start in zip(xs, block.starts, strict=True):
                write_rows(x, slots.select(0, self.rank), start)
        with failures_named("exchange of sizes", self.group):
            for work in self.send_rows(slots, slots.unbind()):
                work.wait()
            everyones = headers.tolist()

        claims = [header[:4] for header in everyones]
        if len({digest for digest, *_ in claims}) > 1:
            return claims  # other ranks' numbers and rows have other lengths
        if numbers:
            self.everyones_numbers = [header[6:] for header in everyones]
        if xs and all(header[5] for header in everyones):
            starts = range(0, slots.numel(), slot)
            sizes = [size for _, size, *_ in claims]
            self.arrived = read_rows(slots.view(-1), starts, sizes, xs, self.dim, len(numbers))
        return claims

    def device(self) -> torch.device:
        """Where this rank's header is."""
        served = {device_type: backend for device_type, backend in self.backends.items() if _is_nccl(backend)}
        return _header_device(self.xs[0] if self.xs else None, served, self.group)

    def exchange_words(self, words: str) -> list[str]:
        """Every rank's words."""
        with failures_named("exchange of words", self.group):
            return _Ranks(self.xs[0] if self.xs else None, self.group).exchange_words(words)

    def send_rows(self, rows: Tensor, parts: Sequence[Tensor]) -> list[Any]:
        """One all-gather. Parts of unequal length are grouped broadcasts, straight into these views."""
        parts = [as_bytes(part) for part in parts]
        if len({len(part) for part in parts}) > 1:
            return [dist.all_gather(parts, parts[self.rank], self.group, async_op=True)]
        all_gather = _renamed("all_gather_single", "all_gather_into_tensor")
        return [all_gather(as_bytes(rows), parts[self.rank], self.group, async_op=True)]

    def sum(self, x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`, of any dtype: numbers narrower than 32 bits are summed in 32 bits or more."""
        if x.is_complex():  # NCCL cannot add them
            return torch.view_as_complex(self.sum(torch.view_as_real(x.resolve_conj()), dim, sizes)).clone()
        refuse_batched(x)
        x = x.detach().resolve_neg()
        rows_first = x.movedim(dim, 0)
        flat = rows_first.to(dtype_of_sums(x.dtype)).contiguous().view(-1)  # as many kernels on any number of ranks
        row = row_elements(x, dim)
        summed = x.new_empty(resized(x, dim, sizes[self.rank]))
        in_place = is_in_rank_order(x, dim) and flat.dtype == x.dtype
        own = summed.view(-1) if in_place else flat.new_empty(summed.numel())
        with failures_named("sum over ranks", self.group, x, dim, sizes):
            if len(set(sizes)) == 1:
                reduce_scatter = _renamed("reduce_scatter_single", "reduce_scatter_tensor")
                reduce_scatter(own, flat, group=self.group)
            else:  # grouped reduces, straight from these views
                dist.reduce_scatter(own, list(flat.split([size * row for size in sizes])), group=self.group)
        if not in_place:
            summed.movedim(dim, 0).copy_(own.view(sizes[self.rank], *rows_first.shape[1:]))
        return summed  # not a view of another tensor: it may be changed in place


def _renamed(new: str, old: str) -> Callable[..., Any]:
    """A function that newer torch has under a new name."""
    return getattr(dist, new, None) or getattr(dist, old)
