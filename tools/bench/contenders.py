# SPDX-License-Identifier: MIT
"""Who is measured: the core, and other ways to gather or to sum. Each is a function of a tensor, dim, and the sizes.

gather   `(… n_r …) -> (… sum(n) …)` along dim; the sizes are None where a contender has to find them
sum      `(… sum(n) …) -> (… n_r …)`: own rows of the sum over ranks
"""

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

import shared_distributed

from .grid import Direction, Point

OURS, NULL, RAW = "core", "core again", "raw broadcasts"
PAD, FUNCTIONAL, TORCHMETRICS, ACCELERATE = "pad to longest", "torch functional", "torchmetrics", "accelerate"
SIZES_FIRST, BARE = "all_to_all_single after its sizes", "all_to_all_single"
ALL_REDUCE, PAD_ONCE = "all-reduce and slice", "padded into one buffer"
KNOWN = ", sizes known"  # after the name of a gather that is given the sizes

Sizes = tuple[int, ...] | None


def core(x: Tensor, dim: int, sizes: Sizes) -> Tensor:
    """As a user calls it."""
    return shared_distributed.all_gather(x, dim, sizes=sizes)[0]


def core_sum(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """As the backward of a gather does it."""
    return shared_distributed.reduce_scatter(x, dim, sizes=sizes, check=False)


def pad(x: Tensor, dim: int, length: int) -> Tensor:
    """`(… n_r …) -> (… length …)` along dim, with zeros."""
    return functional.pad(x, (0, 0) * (x.ndim - dim - 1) + (0, length - x.shape[dim])).contiguous()


class PadAndGather(Function):
    """What the four original files do, written anew; the gradient is musiclm's with `all_reduce_grads`.

    One of the four skips padding and selecting where all sizes are equal; this follows the other three.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Sizes) -> Tensor:
        """Through W × max(n) rows."""
        world = dist.get_world_size()
        if sizes is None:
            size = torch.tensor(x.shape[dim], device=x.device)
            each_size = [torch.empty_like(size) for _ in range(world)]
            dist.all_gather(each_size, size)
            all_sizes = torch.stack(each_size)
        else:
            all_sizes = torch.tensor(sizes, device=x.device)
        longest = int(all_sizes.max())
        padded = pad(x, dim, longest)
        parts = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(parts, padded)
        is_real = (torch.arange(longest, device=x.device) < all_sizes.unsqueeze(1)).flatten()
        ctx.dim, ctx.sizes = dim, all_sizes.tolist()
        return torch.cat(parts, dim).index_select(dim, is_real.nonzero().squeeze(1))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Own rows of the sum over ranks."""
        return all_reduce_and_slice(gradient, ctx.dim, ctx.sizes), None, None


def all_reduce_and_slice(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """Every rank receives all of the sum, and keeps a part.

    The originals reduce in place, and so corrupt an expanded gradient; the clone is the least that is correct.
    """
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return torch.split(total, list(sizes), dim)[dist.get_rank()]


def functional_padded(x: Tensor, dim: int, sizes: Sizes) -> Tensor:
    """Padded as well, but into one buffer: the fewest copies that padding allows. Differentiable."""
    group: Any = dist.group.WORLD
    each = sizes or collectives.all_gather_single(torch.tensor([x.shape[dim]], device=x.device), 0, group).tolist()
    parts = collectives.all_gather_single_autograd(pad(x, dim, max(each)), 0, group).chunk(len(each))
    return torch.cat([part.narrow(dim, 0, n) for part, n in zip(parts, each, strict=True)], dim)


def functional_all_to_all(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """Real rows only, each rank's once for every rank. Differentiable."""
    rows, group = x.movedim(dim, 0), cast(Any, dist.group.WORLD)
    repeated, own = torch.cat([rows] * len(sizes)), [len(rows)] * len(sizes)
    out = collectives.all_to_all_single_autograd(repeated, list(sizes), own, group)
    gathered: Tensor = collectives.wait_tensor(out)
    return gathered.movedim(0, dim).contiguous()


def raw_broadcasts(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """Nothing is checked or chosen, and exactly the necessary bytes travel; for dim 0 straight into the output."""
    rows = x.movedim(dim, 0)
    out = rows.new_empty((sum(sizes), *rows.shape[1:]))
    blocks = out.split(list(sizes))
    blocks[dist.get_rank()].copy_(rows)
    works: list[Any] = [dist.broadcast(block, rank, async_op=True) for rank, block in enumerate(blocks)]
    for work in works:
        work.wait()
    return out.movedim(0, dim).contiguous()


def torchmetrics(x: Tensor, dim: int, sizes: Sizes) -> Tensor:
    """Pads as well."""
    from torchmetrics.utilities.distributed import gather_all_tensors

    return torch.cat(gather_all_tensors(x), dim)


@cache
def _accelerate() -> Any:
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    # what its launcher would set; without OMP_NUM_THREADS it picks a number of threads of its own
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, OMP_NUM_THREADS="1")
    from accelerate.state import PartialState
    from accelerate.utils import operations

    PartialState(cpu=dist.get_backend() == "gloo", backend=dist.get_backend())
    return operations


def accelerate(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """Pads as well, and does not say what is padding: that it is given the sizes is in its favour."""
    padded = _accelerate().gather(_accelerate().pad_across_processes(x, dim=dim))
    parts = zip(padded.chunk(len(sizes)), sizes, strict=True)
    return torch.cat([part.narrow(dim, 0, n) for part, n in parts], dim)


def core_all_to_all(x: Tensor, dim: int, counts: Any) -> Tensor:
    """As a user calls it; what is received is None where it is not known."""
    sent, received = counts
    return shared_distributed.all_to_all(x, sent, dim, received=received)[0]


def sizes_first(x: Tensor, dim: int, counts: Any) -> Tensor:
    """One all-to-all of the sizes, then one of the rows."""
    sent, _ = counts
    sizes = torch.tensor(sent, device=x.device)
    received = torch.empty_like(sizes)
    dist.all_to_all_single(received, sizes)
    return bare_all_to_all(x, dim, (sent, received.tolist()))


def bare_all_to_all(x: Tensor, dim: int, counts: Any) -> Tensor:
    """Nothing is checked; along dim 0."""
    sent, received = counts
    rows = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(rows, x, received, sent)
    return rows


def core_each(x: Tensor, dim: int, sizes: Any) -> list[Tensor]:
    """As a user calls it."""
    return shared_distributed.all_gather_each(x)


def torchmetrics_each(x: Tensor, dim: int, sizes: Any) -> list[Tensor]:
    """Pads every dim to the longest."""
    from torchmetrics.utilities.distributed import gather_all_tensors

    found: list[Tensor] = gather_all_tensors(x)
    return found


class Contender(NamedTuple):
    """A name, what it calls, and where it takes part."""

    name: str
    call: Callable[[Tensor, int, Any], Any]
    directions: tuple[Direction, ...] = ("forward", "both")
    is_rival: bool = False  # the core should never be slower
    needs: str = ""  # a module that may not be installed
    is_given_sizes: bool = False

    @property
    def against(self) -> str:
        """What it is compared with: the core that knows as much."""
        return OURS + KNOWN if self.name.endswith(KNOWN) and self.name != OURS + KNOWN else OURS

    def takes_part(self, point: Point) -> bool:
        """Whether it can do this at all, here."""
        return point.direction in self.directions and (not self.needs or find_spec(self.needs) is not None)


CONTENDERS = (
    Contender(OURS, core),
    Contender(NULL, core),
    Contender(OURS + KNOWN, core, ("forward", "both", "crossing"), is_given_sizes=True),
    Contender(OURS, core_sum, ("backward",), is_given_sizes=True),
    Contender(NULL, core_sum, ("backward",), is_given_sizes=True),
    Contender(PAD, PadAndGather.apply, is_rival=True),
    Contender(PAD + KNOWN, PadAndGather.apply, is_rival=True, is_given_sizes=True),
    Contender(FUNCTIONAL, functional_padded, is_rival=True),
    Contender(FUNCTIONAL + KNOWN, functional_all_to_all, is_rival=True, is_given_sizes=True),
    # these two have no summed gradient
    Contender(TORCHMETRICS, torchmetrics, ("forward",), is_rival=True, needs="torchmetrics"),
    Contender(ACCELERATE, accelerate, ("forward",), is_rival=True, needs="accelerate", is_given_sizes=True),
    Contender(ALL_REDUCE, all_reduce_and_slice, ("backward",), is_rival=True, is_given_sizes=True),
    Contender(PAD_ONCE + KNOWN, functional_padded, ("crossing",), is_given_sizes=True),
    Contender(RAW + KNOWN, raw_broadcasts, ("forward",), is_given_sizes=True),
    Contender(OURS, core_all_to_all, ("all-to-all",)),
    Contender(NULL, core_all_to_all, ("all-to-all",)),
    Contender(SIZES_FIRST, sizes_first, ("all-to-all",), is_rival=True),
    Contender(OURS, core_all_to_all, ("all-to-all, known",), is_given_sizes=True),
    Contender(NULL, core_all_to_all, ("all-to-all, known",), is_given_sizes=True),
    Contender(BARE, bare_all_to_all, ("all-to-all, known",), is_given_sizes=True),
    Contender(OURS, core_each, ("each",)),
    Contender(NULL, core_each, ("each",)),
    Contender(TORCHMETRICS, torchmetrics_each, ("each",), is_rival=True, needs="torchmetrics"),
)
