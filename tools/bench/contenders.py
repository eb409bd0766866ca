# SPDX-License-Identifier: MIT
"""Who is measured. Each contender turns a task into a function of one tensor.

forward, sum, local   input of this rank -> the gathered tensor (differentiable in the last two)
backward              gradient of the gathered tensor -> own rows of the sum over ranks
"""

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed

from .gathers import PadAndGather, all_reduce_and_slice, raw_exchange
from .grid import LARGEST, Mode, Point

KNOWN, UNKNOWN = "core, sizes known", "core"
BASELINE, NULL = "pad to longest", "pad to longest, again"
TORCHMETRICS, ACCELERATE = "torchmetrics", "accelerate"
RAW, MEMCPY = "raw isend/irecv", "memcpy"

Function = Callable[[Tensor], Tensor]


class Task(NamedTuple):
    """A rank's tensors at a point, in one mode. Small whole numbers, so that sums are exact in any order."""

    mode: Mode
    dim: int
    sizes: tuple[int, ...]
    x: Tensor
    gradient: Tensor  # that arrives at the gathered tensor
    gathered: Tensor  # only memcpy looks at it
    right: Tensor  # what a call must return, to the bit


class Contender(NamedTuple):
    """A name, where it takes part, and how a task becomes a function."""

    name: str
    modes: tuple[Mode, ...]
    make: Callable[[Task], Function]
    needs: str = ""  # a module that may not be there
    is_adapter: bool = False

    def takes_part(self, mode: Mode, point: Point) -> bool:
        """Whether it can do this at all, here. An adapter adds microseconds to the core: not at the largest size."""
        fits = mode in self.modes and (not self.is_adapter or point.mean_bytes < LARGEST)
        return fits and (not self.needs or find_spec(self.needs) is not None)


def _core(task: Task, sizes: tuple[int, ...] | None = None) -> Function:
    if task.mode == "backward":
        return lambda gradient: shared_distributed.reduce_scatter(gradient, task.dim, sizes=task.sizes, check=False)
    grad: Literal["sum", "local"] = "sum" if task.mode == "sum" else "local"
    return lambda x: shared_distributed.all_gather(x, task.dim, sizes=sizes, grad=grad)[0]


# an adapter's gather -> a tensor and the sizes
_ADAPTERS: dict[str, Callable[[Any, Task], Callable[[Tensor], Any]]] = {
    "musiclm": lambda module, task: module.AllGather(task.dim, all_reduce_grads=task.mode == "sum"),
    "spear-tts": lambda module, task: lambda x: module.all_gather(x, task.dim, None),
    "mirasol": lambda module, task: lambda x: module.all_gather(x, task.dim, None),
    "st-moe": lambda module, task: module.AllGather(dim=task.dim),
}


def module_of(adapter: str, *, vendored: bool = False) -> str:
    """What an adapter is imported as: the package, or its rendered file as `--vendored` names it."""
    return f"{adapter.replace('-', '_')}_{'vendored' if vendored else 'distributed'}"


def _adapter(name: str, *, vendored: bool = False) -> Contender:
    module = module_of(name, vendored=vendored)

    def make(task: Task) -> Function:
        gather = _ADAPTERS[name](import_module(module), task)
        return lambda x: gather(x)[0]

    modes: tuple[Mode, ...] = ("forward", "sum", "local") if name == "musiclm" else ("forward", "local")
    return Contender(f"{name}, vendored" if vendored else name, modes, make, needs=module, is_adapter=True)


def _baseline(task: Task) -> Function:
    if task.mode == "backward":
        return lambda gradient: all_reduce_and_slice(gradient, task.dim, list(task.sizes))
    return lambda x: PadAndGather.apply(x, task.dim, task.mode == "sum")


def _torchmetrics(task: Task) -> Function:
    gather_all_tensors = import_module("torchmetrics.utilities.distributed").gather_all_tensors
    return lambda x: torch.cat(gather_all_tensors(x), task.dim)


def _accelerate(task: Task) -> Function:
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    # what its launcher would set; without OMP_NUM_THREADS it picks a number of threads of its own
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, OMP_NUM_THREADS="1")
    import_module("accelerate.state").PartialState(cpu=True, backend="gloo")
    operations = import_module("accelerate.utils.operations")

    def gather(x: Tensor) -> Tensor:
        padded = operations.gather(operations.pad_across_processes(x, dim=task.dim))
        # it forgets the sizes on the way: that they are known here is in its favour
        parts = zip(padded.chunk(len(task.sizes)), task.sizes, strict=True)
        return torch.cat([part.narrow(task.dim, 0, n) for part, n in parts], task.dim)

    return gather


CONTENDERS: tuple[Contender, ...] = (
    Contender(KNOWN, ("forward", "backward", "sum", "local"), lambda task: _core(task, task.sizes)),
    Contender(UNKNOWN, ("forward", "sum", "local"), _core),
    *(_adapter(name) for name in _ADAPTERS),
    *(_adapter(name, vendored=True) for name in _ADAPTERS),
    Contender(BASELINE, ("forward", "backward", "sum", "local"), _baseline),
    Contender(NULL, ("forward", "backward", "sum", "local"), _baseline),
    # own slice only: the other ranks' parts come without a gradient
    Contender(TORCHMETRICS, ("forward", "local"), _torchmetrics, needs="torchmetrics"),
    Contender(ACCELERATE, ("forward",), _accelerate, needs="accelerate"),
    # the limits: nothing checks or chooses, and nothing travels
    Contender(RAW, ("forward",), lambda task: lambda x: raw_exchange(x, task.dim, task.sizes)),
    Contender(MEMCPY, ("forward",), lambda task: lambda _: task.gathered.clone()),
)
