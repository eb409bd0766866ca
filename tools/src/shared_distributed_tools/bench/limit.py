# SPDX-License-Identifier: MIT
"""The limit: point-to-point messages of exactly the necessary bytes, and nothing that checks or chooses."""

from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function


def exchange(parts_out: list[Tensor], parts_in: list[Tensor]) -> None:
    """Send `parts_out[r]` to every other rank r, receive `parts_in[r]` from it. Receives are posted first."""
    rank, world = dist.get_rank(), dist.get_world_size()
    others = [(rank + step) % world for step in range(1, world)]
    works = [dist.irecv(parts_in[other], src=other) for other in others if parts_in[other].numel()]
    works += [dist.isend(parts_out[other], dst=other) for other in others if parts_out[other].numel()]
    for work in works:
        assert work is not None  # None is for ranks outside the group
        work.wait()


def gather(x: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """`(… n_r …) -> (… sum(n) …)`: straight into the output for dim 0, one more copy for other dims."""
    shape, rank, world = list(x.shape), dist.get_rank(), len(sizes)
    elements_a_row = prod(shape[:dim]) * prod(shape[dim + 1 :])
    flat = x.new_empty(sum(sizes) * elements_a_row)
    blocks = list(torch.split(flat, [n * elements_a_row for n in sizes]))
    blocks[rank].copy_(x.reshape(-1))
    exchange([blocks[rank]] * world, blocks)
    parts = [block.view(*shape[:dim], n, *shape[dim + 1 :]) for block, n in zip(blocks, sizes, strict=True)]
    return flat.view(-1, *shape[1:]) if dim == 0 else torch.cat(parts, dim)


def sum_own(gradient: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """`(… sum(n) …) -> (… n_r …)`: every rank's own rows come in from all others, and are added."""
    rank, world = dist.get_rank(), len(sizes)
    parts = [part.contiguous() for part in torch.split(gradient, list(sizes), dim)]
    received = parts[rank].new_empty(world, *parts[rank].shape)
    received[rank].copy_(parts[rank])
    exchange(parts, list(received))
    return received.sum(0)


class RawExchange(Function):
    """The two above as one differentiable gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
        """The gathered tensor."""
        ctx.dim, ctx.sizes = dim, sizes
        return gather(x, dim, sizes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Own slice of the sum over ranks."""
        return sum_own(gradient, ctx.dim, ctx.sizes), None, None
