# SPDX-License-Identifier: MIT
"""Agree: what every rank must know before any rows move."""

import os
from functools import reduce
from hashlib import blake2b
from operator import index, or_
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._errors import BadInputError, DisagreementError
from ._move import _Rows
from ._world import _graph_break, _has_shape, _long_tensor


class _Call(_Rows):  # agree: what every rank must know before any rows move
    @_graph_break
    def agree(self, op: str, *xs: Any, check: bool = False) -> tuple[Any, ...]:
        """The call with every rank's size, and the tensors to gather; if any rank's call is wrong, an error on all."""
        if not dist.is_available():
            raise RuntimeError("there is no process group: this torch was built without torch.distributed")
        digest, size = 0, 0
        # given sizes are trusted: wrong ones can hang or abort the other ranks, unless this variable is set
        trusted = self.sizes is not None and not check and os.environ.get("SHARED_DISTRIBUTED_CHECK", "0") == "0"
        exchange = (lambda ints, _: [ints]) if trusted else self.exchange
        try:
            words, size, sizes = self.describe(op, *xs)
            if trusted:
                return self._replace(sizes=sizes), *xs
            digest = int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "big", signed=True)
        except Exception as error:  # raised below, on every rank
            args = [(tuple(x.shape), x.dtype) if _has_shape(x) else type(x) for x in xs if not isinstance(x, Exception)]
            words = f"{op} of {args}, dim {self.dim!a}: {error}"
        wants = [x.requires_grad for x in xs if digest]
        # bit 0: this rank can join a backward for the others' sake; bit 1 on: it wants the gradient of that tensor
        flags = torch.is_grad_enabled() * (1 + sum(want << i for i, want in enumerate(wants, 1)))
        digests, found, flags = zip(*exchange([digest, size, flags], xs), strict=True)
        wanted = (reduce(or_, flags) >> 1) * self.summed
        stuck = self.summed and any(not own & 1 and own >> 1 != wanted for own in flags)
        if 0 in digests or len(set(digests)) > 1 or stuck:
            words = words.replace("'*'", str(size)) + f", requires_grad {wants}, grad_enabled {torch.is_grad_enabled()}"
            line = f"\n  rank {dist.get_rank(self.group)} of {dist.get_world_size(self.group)}: {words}".encode()
            width = max(exchange([len(line)], xs))[0]
            lines = [bytes(row).decode().rstrip() for row in exchange(list(line.ljust(width)), xs)]
            kind = BadInputError if 0 in digests else DisagreementError
            raise kind("cannot gather; ranks may differ only in their size along dim:" + "".join(lines))
        # a rank that skips a summed backward would leave the others waiting in it
        joined = [x if x.requires_grad or not wanted >> i & 1 else x.clone().requires_grad_() for i, x in enumerate(xs)]
        return self._replace(sizes=found), *joined

    def describe(self, op: str, x: Any) -> tuple[str, int, Any]:
        """What must be equal on every rank, in words, `*` for the size along `dim`; that size; `sizes` as ints."""
        dense = _has_shape(x) and x.layout == torch.strided and not (x.is_quantized or hasattr(x, "to_local"))
        if not dense or x.device.type not in self.backends:
            raise TypeError(f"expected a dense torch.tensor on {' or '.join(self.backends)}, and no DTensor")
        size, dim, sizes, pg = x.size(index(self.dim)), index(self.dim) % x.ndim, self.sizes, self.group  # or raises
        if sizes is not None:
            sizes = tuple(index(n) for n in (sizes.tolist() if isinstance(sizes, Tensor) else sizes))
            if len(sizes) != dist.get_world_size(pg) or min(sizes) < 0 or sizes[dist.get_rank(pg)] != size:
                raise ValueError(f"{sizes=} for {dist.get_world_size(pg)} ranks, rank {dist.get_rank(pg)} has {size}")
        shape = (*x.shape[:dim], "*", *x.shape[dim + 1 :])
        return f"{op} of {shape} {x.dtype} on {x.device.type}, {dim=}, {sizes=}, summed={self.summed}", size, sizes

    def exchange(self, ints: list[int], xs: Any) -> list[list[int]]:
        """Every rank's ints, in rank order: one small exchange, and the only read back to the host."""
        devices = ["cpu", *[x.device for x in xs if isinstance(x, Tensor)], *self.backends]
        device = next(d for d in map(torch.device, devices) if d.type in self.backends)
        rows = _long_tensor([ints] * dist.get_world_size(self.group), device)
        self.spread(rows.view(-1).view(torch.uint8), [8 * len(ints)] * len(rows))
        return rows.tolist()
