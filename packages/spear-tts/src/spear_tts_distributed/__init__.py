# SPDX-License-Identifier: MIT
"""The `distributed.py` of spear-tts, over the shared core.

>>> gathered, sizes = all_gather(torch.ones(3, 2), 0, None)
>>> sizes is None  # alone
True
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from shared_distributed import gather_with_rows, is_distributed, select_rows, sizes_tensor

__all__ = ["AllGather", "all_gather", "all_gather_variable_dim"]


def all_gather_variable_dim(t: Tensor, dim: int = 0, sizes: Any = None) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` and the sizes as a LongTensor."""
    gathered, found, _ = gather_with_rows(t, dim, sizes)
    return gathered, sizes_tensor(found, t.device)


class AllGather(Function):
    """`apply(x, dim, sizes)`: `(… n_r …) -> (… sum(n) …)` and the sizes; gradient: own slice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Any) -> tuple[Tensor, Tensor | None]:
        ctx.is_dist = is_distributed()  # asked at every call
        if not ctx.is_dist:
            return x, None
        gathered, found, ctx.rows = gather_with_rows(x, dim, sizes)
        ctx.dim = dim
        return gathered, sizes_tensor(found, x.device)

    @staticmethod
    def backward(ctx: Any, grads: Tensor, _: Any) -> tuple[Tensor, None, None]:
        return select_rows(grads, ctx.dim, ctx.rows) if ctx.is_dist else grads, None, None


all_gather = AllGather.apply
