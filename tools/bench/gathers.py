# SPDX-License-Identifier: MIT
"""Two gathers to compare with: what the originals do, and the limit."""

from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional


def pad_and_gather(x: Tensor, dim: int) -> tuple[Tensor, list[int]]:
    """`(… n_r …) -> (… sum(n) …)` along dim, through W × max(n) rows; and the sizes.

    What the four original files do, written anew. One of the four skips padding and selecting where all sizes are
    equal; this follows the other three.
    """
    world = dist.get_world_size()
    size = torch.tensor(x.shape[dim])
    each_size = [torch.empty_like(size) for _ in range(world)]
    dist.all_gather(each_size, size)
    sizes = torch.stack(each_size)
    longest = int(sizes.max())

    missing = longest - x.shape[dim]
    padded = functional.pad(x, (0, 0) * (x.ndim - dim - 1) + (0, missing)).contiguous()
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    joined = torch.cat(parts, dim)

    is_real = (torch.arange(longest) < sizes.unsqueeze(1)).flatten()
    return joined.index_select(dim, is_real.nonzero().squeeze(1)), sizes.tolist()


def all_reduce_and_slice(gradient: Tensor, dim: int, sizes: list[int]) -> Tensor:
    """Own rows of the gradient summed over ranks: every rank receives all of the sum, and keeps a part.

    The originals reduce in place, and so corrupt an expanded gradient; the clone is the least that is correct.
    """
    total = gradient.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return torch.split(total, sizes, dim)[dist.get_rank()]


class PadAndGather(Function):
    """The two above as one differentiable gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, summed: bool) -> Tensor:
        """The gathered tensor."""
        gathered, ctx.sizes = pad_and_gather(x, dim)
        ctx.dim, ctx.summed = dim, summed
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Own slice, of the sum over ranks or of this rank's gradient alone."""
        if ctx.summed:
            return all_reduce_and_slice(gradient, ctx.dim, ctx.sizes), None, None
        return torch.split(gradient, ctx.sizes, ctx.dim)[dist.get_rank()], None, None


def raw_exchange(x: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """`(… n_r …) -> (… sum(n) …)` by point-to-point messages of exactly the necessary bytes: the limit.

    Straight into the output for dim 0, one more copy for other dims.
    """
    shape, rank, world = list(x.shape), dist.get_rank(), len(sizes)
    elements_a_row = prod(shape[:dim]) * prod(shape[dim + 1 :])
    flat = x.new_empty(sum(sizes) * elements_a_row)
    blocks = list(torch.split(flat, [n * elements_a_row for n in sizes]))
    blocks[rank].copy_(x.reshape(-1))
    others = [(rank + step) % world for step in range(1, world)]
    works = [dist.irecv(blocks[other], src=other) for other in others if sizes[other]]  # posted before the sends
    works += [dist.isend(blocks[rank], dst=other) for other in others if sizes[rank]]
    for work in works:
        assert work is not None  # None is for ranks outside the group
        work.wait()
    parts = [block.view(*shape[:dim], n, *shape[dim + 1 :]) for block, n in zip(blocks, sizes, strict=True)]
    return flat.view(-1, *shape[1:]) if dim == 0 else torch.cat(parts, dim)
