# SPDX-License-Identifier: MIT
"""The CUDA path without a GPU: fake tensors on a fake process group. No kernel runs; shapes, devices and syncs show.

`.item()`, `.tolist()` and whatever else reads a fake tensor's values raises. So a call that comes back has read from
the device to the host only where it went through `read_to_host`, which is counted.
"""

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import shared_distributed as core
from ranks.calls import adapter
from ranks.gather import gather_by

agreement = importlib.import_module("shared_distributed._agreement")
autograd = importlib.import_module("shared_distributed._autograd")
transport = importlib.import_module("shared_distributed._transport")

COLUMNS = 5
FUNCTION = {
    "musiclm": "AllGatherFunction",
    "spear-tts": "AllGather",
    "mirasol": "AllGather",
    "st-moe": "AllGatherFunction",
}


class Seen(NamedTuple):
    """What came out of a call: shape and device, reads from device to host, or the error's name."""

    shape: tuple[int, ...] = ()
    device: str = ""
    reads: int = 0
    error: str = ""


class FakeCuda:
    """This rank among `world` others that only seem to be there, with NCCL's rows of the transport table."""

    def __init__(self, world: int, rank: int, sizes: list[int]) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        transport._GATHER["fake"], transport._SUM["fake"] = transport._gather_on_nccl, transport._sum_on_nccl
        self._reads = 0
        self._header: list[int] = []
        exchange_header = agreement.exchange_header

        def noted(operation: str, header: list[int], group: Any) -> Any:
            self._header = header
            return exchange_header(operation, header, group)

        def read(headers: Tensor) -> list[list[int]]:
            self._reads += 1
            assert tuple(headers.shape) == (world, len(self._header))
            column = agreement._BODY + self._header[1]  # where the one number is in which ranks may differ
            if self._header[1] < 0:
                return [self._header] * world
            return [[*self._header[:column], n, *self._header[column + 1 :]] for n in sizes]

        agreement.exchange_header, transport.read_to_host = noted, read

    def watch(self, call: Callable[[], Tensor]) -> Seen:
        """What one call gives, and how often it reads."""
        self._reads = 0
        try:
            result = call()
        except Exception as error:  # any error is a result here
            return Seen(reads=self._reads, error=type(error).__name__)
        return Seen(tuple(result.shape), result.device.type, self._reads)


def syncs_on_cuda(world: int, rank: int, subjects: list[str]) -> dict[str, dict[str, Seen]]:
    """Every way to gather, and what is around it, on cuda tensors."""
    sizes = [r % 3 + 1 for r in range(world)]
    fake = FakeCuda(world, rank, sizes)
    with FakeTensorMode():
        x = torch.empty(sizes[rank], COLUMNS, device="cuda")
        return {
            subject: helpers(fake, x, sizes) if subject == "helpers" else gathers(fake, subject, x, sizes)
            for subject in subjects
        }


def gathers(fake: FakeCuda, subject: str, x: Tensor, sizes: list[int]) -> dict[str, Seen]:
    gather = gather_by(subject)
    returned = gather(x, 0, None)[1]
    seen = {
        "known": fake.watch(lambda: gather(x, 0, sizes)[0]),
        "backward": fake.watch(lambda: backward(subject, x, sizes)),
        "not known": fake.watch(lambda: gather(x, 0, None)[0]),
        "passed back": fake.watch(lambda: gather(x, 0, returned)[0]),
    }
    if isinstance(returned, Tensor):
        seen["sizes"] = fake.watch(lambda: returned)
        returned.add_(0)  # written to: no longer to be trusted
        seen["written to"] = fake.watch(lambda: gather(x, 0, returned)[0])
    return seen


def backward(subject: str, x: Tensor, sizes: list[int]) -> Tensor:
    """A gather's backward, called by hand: autograd cannot run on CUDA tensors of a CPU build."""
    who, _, grad = subject.partition(" ")
    arriving = x.new_empty(sum(sizes), COLUMNS)
    if who == "core":
        needs = [False] * 5 + [True]
        ctx = SimpleNamespace(dims=[0], sizes=sizes, grad=grad, group=None, needs_input_grad=needs)
        return autograd._Gather.backward(ctx, arriving)[-1]  # type: ignore[no-any-return]
    function, ctx = getattr(adapter(who), FUNCTION[who]), SimpleNamespace()
    function.forward(ctx, x, 0, sizes, *([grad == "sum"] if who == "musiclm" else []))
    return function.backward(ctx, arriving, None)[0]  # type: ignore[no-any-return]


def helpers(fake: FakeCuda, x: Tensor, sizes: list[int]) -> dict[str, Seen]:
    moe, layout = adapter("st-moe"), core.RowLayout(sizes)
    parts = tuple(x.new_empty(n, COLUMNS) for n in sizes)
    whole = x.new_empty(sum(sizes), COLUMNS)
    returned = core.all_gather_variable_dim(x, sizes=sizes)[1]
    return {
        "reduce_scatter": fake.watch(lambda: core.reduce_scatter(whole, sizes=sizes)),
        "two tensors, sizes not known": fake.watch(lambda: core.all_gather([x, x])[0][1]),
        "all_gather_variable_dim, passed back": fake.watch(lambda: core.all_gather_variable_dim(x, 0, returned)[0]),
        "split_by_rank, passed on": fake.watch(lambda: moe.AllGather()(*moe.split_by_rank(parts))[0]),
        "gather_sizes": fake.watch(lambda: moe.gather_sizes(x, dim=0)),
        "own rows": fake.watch(lambda: layout.own(whole)),
        "ranks of rows": fake.watch(lambda: layout.ranks("cuda")),
        "mask": fake.watch(lambda: layout.mask(device="cuda")),
    }
