# SPDX-License-Identifier: MIT
"""The CUDA path without a GPU: fake tensors on a fake process group. No kernel runs; shapes, devices and syncs show.

`.item()` and whatever else reads a fake tensor's values raises, but for `.tolist()`, which is answered and counted. So
a call that comes back has read from the device to the host as often as was counted.
"""

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import shared_distributed as core
from tests.support.adapters import adapter, function_of
from tests.support.gather import gather_by

call = importlib.import_module("shared_distributed._call")
choose = importlib.import_module("shared_distributed._choose")
gradient = importlib.import_module("shared_distributed._gradient")
nccl = importlib.import_module("shared_distributed._nccl")
compiled = importlib.import_module("shared_distributed._compiled")
usable = importlib.import_module("shared_distributed._usable")

COLUMNS = 5


class Seen(NamedTuple):
    """What came out of a call: shape and device, reads from device to host, or the error's name."""

    shape: tuple[int, ...] = ()
    device: str = ""
    reads: int = 0
    error: str = ""


class FakeCuda:
    """This rank among `world` others that only seem to be there, taken for NCCL's."""

    def __init__(self, world: int, rank: int, sizes: list[int]) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # here, since an old torch has none

        dist.init_process_group("cuda:fake", store=FakeStore(), rank=rank, world_size=world)
        call._backends = lambda group: {"cuda": "nccl"}
        compiled.refuse_tracing = lambda: None
        usable.FakeTensor = ()  # no tensor is one: these stand for tensors on a GPU
        self._reads = 0
        self._header: list[int] = []
        exchange = nccl.Nccl.exchange

        def noted(ranks: Any, claim: Any) -> Any:
            self._header = claim
            return exchange(ranks, claim)

        def read(tensor: Tensor) -> list[Any]:
            """What every rank sent, were it there: headers that differ in the size alone. Or the sizes themselves."""
            assert tensor.device.type == "cuda"
            self._reads += 1
            if tensor.ndim == 1:
                return sizes
            assert tuple(tensor.shape) == (world, len(self._header) + 2)
            digest, _, *others = self._header
            return [[digest, n, *others, 0, 1] for n in sizes]  # 1: the rows are in the slots

        def copy(target: Tensor, source: Tensor) -> Tensor:
            """In place of `copy_`, which asks a CPU build for its CUDA. From the host it would wait for the device."""
            assert target.device == source.device
            assert source.expand_as(target).shape == target.shape
            return target

        nccl.Nccl.exchange, FakeTensor.tolist, FakeTensor.copy_ = noted, read, copy

    def watch(self, call: Callable[[], Tensor]) -> Seen:
        """What one call gives, and how often it reads."""
        self._reads = 0
        try:
            result = call()
        except Exception as error:  # any error is a result here
            return Seen(reads=self._reads, error=f"{type(error).__name__}: {error}")
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
    return seen


def backward(subject: str, x: Tensor, sizes: list[int]) -> Tensor:
    """A gather's backward, called by hand: autograd cannot run on CUDA tensors of a CPU build."""
    who, _, grad = subject.partition(" ")
    arriving = x.new_empty(sum(sizes), COLUMNS)
    if who == "core":
        tie = x.new_empty(0)
        ranks = choose.ranks_for_headers(None, [], 0)
        ctx = SimpleNamespace(call=(ranks, 0, sizes, grad == "sum"), is_adjoint=False, saved_tensors=[tie])
        return gradient._Gather.backward(ctx, tie, arriving)[-1]  # type: ignore[no-any-return]
    arguments = (x, 0, sizes, *([True] if grad == "sum" else []))
    function, ctx = getattr(adapter(who), function_of(who)), SimpleNamespace(needs_input_grad=[True] * len(arguments))
    function.forward(ctx, *arguments)
    return function.backward(ctx, arriving, None)[0]  # type: ignore[no-any-return]


def helpers(fake: FakeCuda, x: Tensor, sizes: list[int]) -> dict[str, Seen]:
    moe, layout = adapter("st-moe"), core.RowLayout(sizes, rank=dist.get_rank())
    parts = tuple(x.new_empty(n, COLUMNS) for n in sizes)
    whole = x.new_empty(sum(sizes), COLUMNS)
    returned = core.all_gather_variable_dim(x, sizes=sizes)[1]
    return {
        "reduce_scatter": fake.watch(lambda: core.reduce_scatter(whole, sizes=sizes)),
        "reduce_scatter, not checked": fake.watch(lambda: core.reduce_scatter(whole, sizes=sizes, check=False)),
        "two tensors, sizes not known": fake.watch(lambda: core.all_gather([x, x])[0][1]),
        "all_gather_variable_dim, passed back": fake.watch(lambda: core.all_gather_variable_dim(x, 0, returned)[0]),
        "split_by_rank, passed on": fake.watch(lambda: moe.AllGather()(*moe.split_by_rank(parts))[0]),
        "gather_sizes": fake.watch(lambda: moe.gather_sizes(x, dim=0)),
        "own rows": fake.watch(lambda: layout.own(whole)),
        "ranks of rows": fake.watch(lambda: layout.ranks("cuda")),
        "mask": fake.watch(lambda: layout.mask(device="cuda")),
    }
