# SPDX-License-Identifier: MIT
"""A call as the package makes it: small gathers in one round, fast transports, failures that name ranks."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from math import prod
from operator import index
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from ._agree import _Call
from ._errors import BadInputError
from ._faults import failures_named
from ._headers import Arrived, Mail, in_slots, may_be_short
from ._transports import BROADCASTS, TRANSPORTS, Transport
from ._world import _graph_break

_TENSORS = 61  # of a container, agreed on in one exchange: a bit each, beside another
_PLAIN = (Tensor, Parameter)
_CPU = torch.device("cpu")


class _Place:
    """What is kept of a group as long as it lives. To ask torch again takes longer than to send a small message."""

    def __init__(self, group: Any, backends: dict[str, str]) -> None:
        self.rank, self.world, self.backends = group.rank(), group.size(), backends

    @cached_property
    def mail(self) -> Mail | None:
        return Mail(self.rank, self.world) if may_be_short() else None


_places = WeakKeyDictionary[Any, _Place]()


class FastCall(_Call):
    """A call that takes its backend's own transports, and names the ranks that fail in them."""

    arrived: Arrived = []  # noqa: RUF012 (never added to): rows that came with the headers
    steps: list[Callable[[], None]] | None = None  # gathers are only started, and what finishes them is put in here

    def _replace(self, **changes: Any) -> "FastCall":
        call = super()._replace(**changes)
        vars(call).update(vars(self))
        return call

    @cached_property
    def place(self) -> _Place:
        """What is kept of the group; torch's own error where there is none."""
        group = self.group or dist.group.WORLD
        place = None if group is None else _places.get(group)
        if place is None:
            backends = super().backends
            place = _places[group] = _Place(group, backends)
        return place

    @property
    def backends(self) -> dict[str, str]:
        """As the heart reads them, once a group."""
        return self.place.backends

    @_graph_break
    def agree(self, op: str, *xs: Any, check: bool = False) -> tuple[Any, ...]:
        """The call and its tensors, as the heart agrees on them; many tensors, so many at a time."""
        call, *agreed = super().agree(op, *xs[:_TENSORS], check=check)
        for start in range(_TENSORS, len(xs), _TENSORS):
            others, *more = super().agree(op, *xs[start : start + _TENSORS], check=check)
            if others.sizes != call.sizes:  # so every rank finds
                raise BadInputError(f"expected tensors of one size along dim, got {call.sizes} and {others.sizes}")
            agreed += more
            call.arrived = []
        if len(call.arrived) > 1:
            # they are asked for in this order: those with a summed gradient first
            later = [self.summed and not (x.requires_grad and torch.is_grad_enabled()) for x in agreed]
            call.arrived = [call.arrived[i] for i in sorted(range(len(agreed)), key=later.__getitem__)]
        return call, *agreed

    def describe(self, op: str, *xs: Any) -> tuple[str, int, Any]:
        """As the heart describes one tensor. An error that the caller found is raised here: so all ranks hear it."""
        words, found = [], []
        for x in xs:
            if isinstance(x, Exception):
                raise x
            text, size, sizes = super().describe(op, x)
            tracked = torch._C._functorch.is_gradtrackingtensor(x) and x.requires_grad
            if tracked or torch._C._functorch.is_batchedtensor(x) or forward_ad.unpack_dual(x).tangent is not None:
                raise TypeError("torch.func and forward mode do not go through a gather: use torch.autograd.grad")
            _check_copies(x.dtype)
            if type(x) not in _PLAIN:
                x.new_empty(0).copy_(x.detach().flatten().narrow(0, 0, 0))  # raises for what cannot be gathered
            words.append(text.removeprefix(f"{op} of "))
            found.append(size)
        if len(set(found)) != 1:
            raise ValueError(f"expected tensors of one size along dim, got sizes {found}")
        return f"{op} of {'; '.join(words)}", size, sizes

    def exchange(self, ints: list[int], xs: Any) -> list[list[int]]:
        """Every rank's ints, as the heart does it; with the header also its rows, unless the ranks know the sizes."""
        if torch.is_inference_mode_enabled():  # what is kept for later calls is not of this mode
            with torch.inference_mode(False):
                return self.exchange(ints, xs)
        is_header = len(ints) == 3
        with failures_named(lambda: f"exchange of {'sizes' if is_header else 'words'}", self.group):
            return self.exchange_with_rows(ints, xs) if is_header else super().exchange(ints, xs)

    def exchange_with_rows(self, header: list[int], xs: Any) -> list[list[int]]:
        """Every rank's header; and every rank's rows, for `gather` to write, where there is room for all."""
        place, dim, backends = self.place, self.dim, self.backends
        devices = (x.device for x in xs if isinstance(x, Tensor) and x.device.type in backends)
        device = _CPU if "cpu" in backends else next(devices, torch.device(next(iter(backends))))
        mail = place.mail if self.transport(device) is TRANSPORTS["gloo"] else None
        may_come = header[0] and self.sizes is None and all(x.device == device for x in xs)
        if may_come and mail:  # from memory to memory, which wrappers of tensors do not have
            may_come = torch._C._functorch.peek_interpreter_stack() is None and all(type(x) in _PLAIN for x in xs)
        xs = xs if may_come else ()
        widths = [prod(x.shape[:dim]) * prod(x.shape[dim:][1:]) * x.element_size() for x in xs]
        if mail:
            found, self.arrived = mail.exchange(header, xs, widths, self.group)
        else:
            found, self.arrived = in_slots(header, xs, widths, place, device, self.spread)
        return found

    def spread(self, rows: Tensor, counts: list[int]) -> None:
        """This rank's bytes to all others, and theirs into `rows`."""
        for work in self.transport(rows.device).gather(rows, rows.split(counts), self.place.rank, self.group):
            work.wait()

    def transport(self, device: torch.device) -> Transport:
        """What TRANSPORTS has for the backend of a device. Off the CPU, gloo has broadcast and all-reduce only."""
        backend = self.backends[device.type]
        return BROADCASTS if backend == "gloo" and device.type != "cpu" else TRANSPORTS.get(backend, BROADCASTS)

    @_graph_break
    def gather(self, x: Tensor) -> Tensor:
        """`(… n_r …) -> (… sum(n) …)`, as the heart does it; or, if there are `steps`, a start of it."""
        dim, x = index(self.dim) % x.ndim, x.detach().to_dense() if x.is_sparse else x.detach()
        before, after = x.shape[:dim], x.shape[dim + 1 :]
        out = x.new_empty((*before, sum(self.sizes), *after))
        # torch.cat knows few dtypes of one byte
        into, x = (out.view(torch.uint8), x.view(torch.uint8)) if x.element_size() == 1 else (out, x)
        lies_flat = prod(before) == 1  # ranks' parts are one behind the other in the output

        def shaped(flat: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(part.view(*before, n, *after) for part, n in zip(flat, self.sizes, strict=True))

        if self.arrived:
            arrived = self.arrived.pop(0)
            if lies_flat:
                torch.cat(arrived, out=into.view(-1))
            else:
                torch.cat(shaped(arrived), dim, out=into)
            return out
        if lies_flat:
            rows, parts = into, into.split_with_sizes(self.sizes, dim)
        else:
            rows, width = x.new_empty(into.numel()), prod(before) * prod(after)
            parts = shaped(rows.split_with_sizes([n * width for n in self.sizes]))

        def operation() -> str:
            return f"gather of {out.dtype} {(*before, self.sizes, *after)} along dim {dim}"

        def finish() -> None:
            with failures_named(operation, self.group):
                for work in works:
                    work.wait()
            if not lies_flat:
                torch.cat(parts, dim, out=into)

        def finish_later() -> None:
            with torch.inference_mode(out.is_inference()), torch.no_grad():
                finish()

        parts[self.place.rank].copy_(x)  # also resolves strides and conjugation
        with failures_named(operation, self.group):
            works = self.transport(x.device).gather(rows, parts, self.place.rank, self.group)
        finish() if self.steps is None or not works else self.steps.append(finish_later)
        return out

    @_graph_break
    def sum(self, x: Tensor) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`, of any dtype: numbers narrower than 32 bits are summed in 32 bits or more."""
        dim, x = index(self.dim) % x.ndim, x.detach().to_dense() if x.is_sparse else x.detach()
        if x.is_complex():  # NCCL adds none
            return torch.view_as_complex(self._replace(dim=dim).sum(torch.view_as_real(x.resolve_conj()))).clone()
        rank, size = self.place.rank, prod(x.shape[:dim]) * prod(x.shape[dim + 1 :])
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
