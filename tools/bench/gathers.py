# SPDX-License-Identifier: MIT
"""Other ways to gather: what the originals do, what torch's functional collectives offer, and the limit."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional


def pad(x: Tensor, dim: int, length: int) -> Tensor:
    """`(… n_r …) -> (… length …)` along dim, with zeros."""
    return functional.pad(x, (0, 0) * (x.ndim - dim - 1) + (0, length - x.shape[dim])).contiguous()


def pad_and_gather(x: Tensor, dim: int, sizes: Sequence[int] | None = None) -> tuple[Tensor, list[int]]:
    """`(… n_r …) -> (… sum(n) …)` along dim, through W × max(n) rows; and the sizes.

    What the four original files do, written anew. One of the four skips padding and selecting where all sizes are
    equal; this follows the other three.
    """
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
    joined = torch.cat(parts, dim)
    is_real = (torch.arange(longest, device=x.device) < all_sizes.unsqueeze(1)).flatten()
    return joined.index_select(dim, is_real.nonzero().squeeze(1)), all_sizes.tolist()


def all_reduce_and_slice(gradient: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Own rows of the gradient summed over ranks: every rank receives all of the sum, and keeps a part.

    The originals reduce in place, and so corrupt an expanded gradient; the clone is the least that is correct.
    """
    total = gradient.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return torch.split(total, list(sizes), dim)[dist.get_rank()]


class PadAndGather(Function):
    """The two above as one gather with the summed gradient: musiclm's, with `all_reduce_grads`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Sequence[int] | None) -> Tensor:
        """The gathered tensor."""
        gathered, ctx.sizes = pad_and_gather(x, dim, sizes)
        ctx.dim = dim
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Own rows of the sum over ranks."""
        return all_reduce_and_slice(gradient, ctx.dim, ctx.sizes), None, None


def functional_padded(x: Tensor, dim: int, sizes: Sequence[int] | None = None) -> Tensor:
    """Padded as well, but into one buffer: the fewest copies that padding allows. Differentiable."""
    group: Any = dist.group.WORLD
    if sizes is None:
        sizes = collectives.all_gather_single(torch.tensor([x.shape[dim]], device=x.device), 0, group).tolist()
    padded = pad(x, dim, max(sizes))
    parts = collectives.all_gather_single_autograd(padded, 0, group).chunk(len(sizes))
    return torch.cat([part.narrow(dim, 0, n) for part, n in zip(parts, sizes, strict=True)], dim)


def functional_all_to_all(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Real rows only, each rank's once for every rank. Differentiable."""
    rows = x.movedim(dim, 0).contiguous()
    repeated = torch.cat([rows] * len(sizes))
    group: Any = dist.group.WORLD
    out = collectives.all_to_all_single_autograd(repeated, list(sizes), [len(rows)] * len(sizes), group)
    gathered: Tensor = collectives.wait_tensor(out)
    return gathered.movedim(0, dim).contiguous()


def raw_broadcasts(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Nothing is checked or chosen, and exactly the necessary bytes travel; for dim 0 straight into the output."""
    rows = x.movedim(dim, 0)
    out = rows.new_empty((sum(sizes), *rows.shape[1:]))
    blocks = out.split(list(sizes))
    blocks[dist.get_rank()].copy_(rows)
    for work in [dist.broadcast(block, rank, async_op=True) for rank, block in enumerate(blocks)]:
        assert work is not None  # None is for ranks outside the group
        work.wait()
    return out.movedim(0, dim).contiguous()
