# SPDX-License-Identifier: MIT
"""Who is measured. Each contender turns a task into a function of one tensor.

forward, sum, local   input of this rank -> the gathered tensor (differentiable in the last two)
backward              gradient of the gathered tensor -> own rows of the sum over ranks
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import mirasol_distributed
import musiclm_distributed
import shared_distributed
import spear_tts_distributed
import st_moe_distributed

from . import baseline, limit
from .cases import LARGEST, Mode, Point

KNOWN, UNKNOWN = "core, sizes known", "core"
BASELINE, NULL = "pad to longest", "pad to longest, again"
TORCHMETRICS, ACCELERATE = "torchmetrics", "accelerate"
FUNCTIONAL, RAW, MEMCPY = "torch functional", "raw isend/irecv", "memcpy"
RIVALS = (BASELINE, TORCHMETRICS, ACCELERATE)

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """What a contender may know before the clock starts."""

    mode: Mode
    dim: int
    sizes: tuple[int, ...]
    gathered: Tensor  # the right answer; only memcpy looks at it

    @property
    def grad(self) -> Any:
        """The core's word for what the backward gives."""
        return "sum" if self.mode == "sum" else "local"


@dataclass(frozen=True)
class Contender:
    """A name, where it takes part, and how a task becomes a function."""

    name: str
    modes: tuple[Mode, ...]
    make: Callable[[Task], Function]
    needs: str = ""  # a distribution, and module, that may not be installed
    even_only: bool = False
    is_adapter: bool = False

    def takes_part(self, mode: Mode, point: Point) -> bool:
        """Whether it can do this at all, here. An adapter adds microseconds to the core: not at the largest size."""
        fits = point.case == "even" if self.even_only else not self.is_adapter or point.mean_bytes < LARGEST
        return fits and mode in self.modes and (not self.needs or find_spec(self.needs) is not None)


def left_out() -> dict[str, str]:
    """Contenders that cannot run here, and why."""
    return {c.name: f"{c.needs} is not installed" for c in CONTENDERS if c.needs and find_spec(c.needs) is None}


def versions() -> dict[str, str]:
    """Of everything measured that is a distribution of its own."""
    found = {}
    for name in ("shared-distributed", *sorted({c.needs for c in CONTENDERS if c.needs})):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # run from source, or not installed: the latter is said elsewhere
    return found


def _core(task: Task) -> Function:
    return lambda x: shared_distributed.all_gather(x, task.dim, grad=task.grad)[0]


def _core_known(task: Task) -> Function:
    if task.mode == "backward":
        return lambda gradient: shared_distributed.reduce_scatter(gradient, task.dim, sizes=task.sizes)
    return lambda x: shared_distributed.all_gather(x, task.dim, sizes=task.sizes, grad=task.grad)[0]


def _musiclm(task: Task) -> Function:
    module = musiclm_distributed.AllGather(task.dim, all_reduce_grads=task.mode == "sum")
    return lambda x: module(x)[0]


def _spear_tts(task: Task) -> Function:
    return lambda x: spear_tts_distributed.all_gather(x, task.dim, None)[0]


def _mirasol(task: Task) -> Function:
    return lambda x: mirasol_distributed.all_gather(x, task.dim, None)[0]


def _st_moe(task: Task) -> Function:
    module = st_moe_distributed.AllGather(dim=task.dim)
    return lambda x: module(x)[0]


def _baseline(task: Task) -> Function:
    if task.mode == "backward":
        return lambda gradient: baseline.all_reduce_and_slice(gradient, task.dim, list(task.sizes))
    return lambda x: baseline.PadAndGather.apply(x, task.dim, task.mode == "sum")


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


def _functional(task: Task) -> Function:
    collectives = import_module("torch.distributed._functional_collectives")

    def named(*names: str) -> Any:  # newer torch renames these, and warns under the old names
        return next(getattr(collectives, name) for name in names if hasattr(collectives, name))

    group = dist.group.WORLD
    if task.mode == "backward":
        reduce_scatter = named("reduce_scatter_single", "reduce_scatter_tensor")
        return lambda gradient: collectives.wait_tensor(reduce_scatter(gradient, "sum", task.dim, group))
    if task.mode == "forward":
        gather = named("all_gather_single", "all_gather_tensor")
        return lambda x: collectives.wait_tensor(gather(x, task.dim, group))
    differentiable = named("all_gather_single_autograd", "all_gather_tensor_autograd")

    def gather_and_wait(x: Tensor) -> Tensor:
        gathered: Tensor = differentiable(x, task.dim, group)
        with torch.no_grad():
            collectives.wait_tensor(getattr(gathered, "elem", gathered))
        return gathered

    return gather_and_wait


def _raw(task: Task) -> Function:
    if task.mode == "backward":
        return lambda gradient: limit.sum_own(gradient, task.dim, task.sizes)
    return lambda x: limit.RawExchange.apply(x, task.dim, task.sizes)


def _memcpy(task: Task) -> Function:
    return lambda _: task.gathered.clone()


CONTENDERS: tuple[Contender, ...] = (
    Contender(KNOWN, ("forward", "backward", "sum", "local"), _core_known),
    Contender(UNKNOWN, ("forward", "sum", "local"), _core),
    Contender("musiclm", ("forward", "sum", "local"), _musiclm, is_adapter=True),
    Contender("spear-tts", ("forward", "local"), _spear_tts, is_adapter=True),
    Contender("mirasol", ("forward", "local"), _mirasol, is_adapter=True),
    Contender("st-moe", ("forward", "local"), _st_moe, is_adapter=True),
    Contender(BASELINE, ("forward", "backward", "sum", "local"), _baseline),
    Contender(NULL, ("forward", "backward", "sum", "local"), _baseline),
    # own slice only: the other ranks' parts come without a gradient
    Contender(TORCHMETRICS, ("forward", "local"), _torchmetrics, needs="torchmetrics"),
    Contender(ACCELERATE, ("forward",), _accelerate, needs="accelerate"),
    Contender(FUNCTIONAL, ("forward", "backward", "sum"), _functional, even_only=True),
    Contender(RAW, ("forward", "backward", "sum"), _raw),
    Contender(MEMCPY, ("forward",), _memcpy),
)
