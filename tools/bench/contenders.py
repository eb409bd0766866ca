# SPDX-License-Identifier: MIT
"""Who is measured. Each contender turns a task into a function of one tensor.

forward, crossing   input of this rank -> the gathered tensor
both                the same, differentiable, with the summed gradient
backward            gradient of the gathered tensor -> own rows of the sum over ranks
"""

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed

from .gathers import PadAndGather, all_reduce_and_slice, functional_all_to_all, functional_padded, raw_broadcasts
from .grid import Direction, Point

OURS, NULL, RAW = "core", "core again", "raw broadcasts"
PAD, FUNCTIONAL, TORCHMETRICS, ACCELERATE = "pad to longest", "torch functional", "torchmetrics", "accelerate"
ALL_REDUCE, PAD_ONCE = "all-reduce and slice", "padded into one buffer"
KNOWN = ", sizes known"  # after the name of a contender that is given the sizes

Function = Callable[[Tensor], Tensor]
Sizes = tuple[int, ...] | None


class Task(NamedTuple):
    """A rank's tensors at a point. Small whole numbers, so that sums are exact in any order."""

    point: Point
    x: Tensor
    gradient: Tensor  # that arrives at the gathered tensor
    right: Tensor  # what a call must return, to the bit


class Contender(NamedTuple):
    """A name, how a task becomes a function, and where it takes part."""

    name: str
    make: Callable[[Task, Any], Function]
    directions: tuple[Direction, ...] = ("forward", "both")
    is_rival: bool = False  # the core should never be slower
    needs: str = ""  # a module that may not be installed

    @property
    def against(self) -> str:
        """What it is compared with: the core that knows as much."""
        return OURS + KNOWN if self.name.endswith(KNOWN) and self.name != OURS + KNOWN else OURS

    def takes_part(self, point: Point) -> bool:
        """Whether it can do this at all, here."""
        is_there = not self.needs or find_spec(self.needs) is not None
        return is_there and point.direction in self.directions

    def function(self, task: Task) -> Function:
        """What is timed."""
        return self.make(task, task.point.sizes if self.name.endswith(KNOWN) else None)


def _core(task: Task, sizes: Sizes) -> Function:
    dim = task.point.dim
    if task.point.direction == "backward":
        return lambda gradient: shared_distributed.reduce_scatter(gradient, dim, sizes=task.point.sizes, check=False)
    grad: Any = "sum" if task.point.direction == "both" else "local"
    return lambda x: shared_distributed.all_gather(x, dim, sizes=sizes, grad=grad)[0]


def _functional(task: Task, sizes: Sizes) -> Function:
    dim = task.point.dim
    return lambda x: functional_all_to_all(x, dim, sizes) if sizes else functional_padded(x, dim)


def _torchmetrics(task: Task, _: Sizes) -> Function:
    gather_all_tensors = import_module("torchmetrics.utilities.distributed").gather_all_tensors
    return lambda x: torch.cat(gather_all_tensors(x), task.point.dim)


def _accelerate(task: Task, _: Sizes) -> Function:
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    # what its launcher would set; without OMP_NUM_THREADS it picks a number of threads of its own
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, OMP_NUM_THREADS="1")
    import_module("accelerate.state").PartialState(cpu=not task.x.is_cuda, backend=dist.get_backend())
    operations, dim, sizes = import_module("accelerate.utils.operations"), task.point.dim, task.point.sizes

    def gather(x: Tensor) -> Tensor:
        padded = operations.gather(operations.pad_across_processes(x, dim=dim))
        # it does not keep the sizes: that they are known here is in its favour
        parts = zip(padded.chunk(len(sizes)), sizes, strict=True)
        return torch.cat([part.narrow(dim, 0, n) for part, n in parts], dim)

    return gather


def _with_sizes_and_without(name: str, make: Callable[[Task, Any], Function], **rest: Any) -> tuple[Contender, ...]:
    return Contender(name, make, **rest), Contender(name + KNOWN, make, **rest)


CONTENDERS = (
    Contender(OURS, _core, ("forward", "backward", "both")),
    Contender(NULL, _core, ("forward", "backward", "both")),
    Contender(OURS + KNOWN, _core, ("forward", "both", "crossing")),
    *_with_sizes_and_without(
        PAD, lambda task, sizes: lambda x: PadAndGather.apply(x, task.point.dim, sizes), is_rival=True
    ),
    # padded without sizes, all-to-all with them
    *_with_sizes_and_without(FUNCTIONAL, _functional, is_rival=True),
    # these two have no summed gradient
    Contender(TORCHMETRICS, _torchmetrics, ("forward",), is_rival=True, needs="torchmetrics"),
    Contender(ACCELERATE, _accelerate, ("forward",), is_rival=True, needs="accelerate"),
    Contender(
        ALL_REDUCE,
        lambda task, _: lambda gradient: all_reduce_and_slice(gradient, task.point.dim, task.point.sizes),
        ("backward",),
        is_rival=True,
    ),
    Contender(
        PAD_ONCE + KNOWN, lambda task, sizes: lambda x: functional_padded(x, task.point.dim, sizes), ("crossing",)
    ),
    Contender(RAW + KNOWN, lambda task, sizes: lambda x: raw_broadcasts(x, task.point.dim, sizes), ("forward",)),
)
