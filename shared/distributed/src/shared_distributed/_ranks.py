# SPDX-License-Identifier: MIT
"""The ranks of a process group, over any backend, and how numbers, words and rows move between them."""

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor


class _Ranks:
    """Move: only real rows are sent, into views of the output."""

    def __init__(self, x: Any, group: Any = None) -> None:
        if not dist.is_available():
            raise RuntimeError("there is no process group: this torch was built without torch.distributed")
        self.rank = dist.get_rank(group)  # torch's own error without a process group
        self.world = dist.get_world_size(group)
        self.group = group or dist.group.WORLD
        self.backends = _backends(self.group)
        self.header_device = _header_device(x, self.backends, self.group)

    def exchange(self, numbers: Any) -> list[list[int]]:
        """Every rank's numbers, in rank order. Every rank passes as many."""
        rows = _long_tensor([list(numbers)] * self.world, self.header_device)
        self.spread(rows, [1] * self.world)
        return rows.tolist()

    def exchange_words(self, words: str) -> list[str]:
        """Every rank's words, in rank order."""
        encoded = words.encode()
        lengths = self.exchange([len(encoded)])
        padded = encoded.ljust(max(lengths)[0])
        return [bytes(each).decode().rstrip() for each in self.exchange(padded)]

    def gather(self, x: Tensor, dim: int, sizes: Any) -> Tensor:
        """`(… n_r …) -> (… sum(n) …)`, contiguous and not a view. Carries no gradient."""
        own = x.detach().movedim(dim, 0)
        rows = own.new_empty((sum(sizes), *own.shape[1:]))
        rows.split(sizes)[self.rank].copy_(own)  # also resolves strides and conjugation
        self.spread(rows, sizes)
        if dim == 0:
            return rows
        return rows.movedim(0, dim).clone(memory_format=torch.contiguous_format)

    def spread(self, rows: Tensor, sizes: Any) -> None:
        """This rank's block of `rows` to all others, and theirs into the other blocks. As bytes, for gloo."""
        blocks = [block.view(-1).view(torch.uint8) for block in rows.split(sizes)]
        if _is_nccl(self.backends[rows.device.type]):
            if len(set(sizes)) == 1:
                dist.all_gather_into_tensor(rows.view(-1).view(torch.uint8), blocks[self.rank], self.group)
            else:  # one launch as well, but of as many operations as there are ranks
                dist.all_gather(blocks, blocks[self.rank], self.group)
            return
        works = []
        for rank, block in enumerate(blocks):
            source = dist.get_global_rank(self.group, rank)
            works.append(dist.broadcast(block, source, self.group, async_op=True))
        for work in works:
            work.wait()

    def sum(self, x: Tensor, dim: int, sizes: Any) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`: this rank's rows of the sum over ranks. Carries no gradient."""
        dtype = torch.float32 if x.element_size() < 4 else x.dtype  # half precision is summed in float32
        total = x.new_empty(x.shape, dtype=dtype)  # contiguous, and the caller's gradient is not written to
        total.copy_(x.detach())
        dist.all_reduce(total, group=self.group)
        return _own_rows(self, total, dim, sizes).to(x.dtype, copy=True)


def _own_rows(ranks: Any, x: Tensor, dim: int, sizes: Any) -> Tensor:
    """This rank's rows, as a view."""
    return x.split(sizes, dim)[ranks.rank]


def _backends(group: Any) -> dict[str, str]:
    """The group's backend for each kind of device, such as {"cpu": "gloo", "cuda": "nccl"}."""
    entries = str(dist.get_backend_config(group)).split(",")
    return dict(entry.split(":", 1) for entry in entries if entry != "cpu:nccl")  # torch 2.0 lists this, untruly


def _is_nccl(backend: str) -> bool:
    """NCCL by any of its names: nccl, nccl2, nccl-legacy, nccl-lazy, ncclx."""
    return "nccl" in backend


_last_devices = WeakKeyDictionary[Any, torch.device]()


def _header_device(x: Any, backends: dict[str, str], group: Any) -> torch.device:
    """Where ranks exchange numbers: the CPU if a backend serves it, else this rank's device in the group.

    That is the one that the group was bound to, that of its tensors so far, or the current one. It must not depend on a
    tensor that is on a wrong device: this rank has to reach the others to tell them.
    """
    if "cpu" in backends:
        return torch.device("cpu")
    if isinstance(x, Tensor) and x.device.type in backends:
        _last_devices[group] = x.device
    current = torch.device(next(iter(backends)))
    return getattr(group, "bound_device_id", None) or _last_devices.get(group, current)


def _long_tensor(numbers: Any, device: torch.device) -> Tensor:
    """A LongTensor, made without waiting for its device."""
    pinned = device.type == "cuda" and torch.cuda.is_available()
    return torch.tensor(numbers, dtype=torch.long, device="cpu", pin_memory=pinned).to(device, non_blocking=True)


def _is_distributed(group: Any = None) -> bool:
    """Whether there is a process group with more than one rank."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)  # torch 2.0 has none


def _graph_break(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that torch.compile does not look into, so that compiled ranks do in it what the others do."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call
