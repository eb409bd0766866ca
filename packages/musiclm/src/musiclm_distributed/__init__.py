# SPDX-License-Identifier: MIT
"""The `distributed.py` of musiclm, over the shared core.

>>> AllGather(dim=1)(torch.ones(2, 3))[1] is None  # alone: the input itself, and no sizes
True
>>> all_gather_variable_dim(torch.ones(2, 3), dim=1)[1]
tensor([3])
"""

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function

from shared_distributed import (
    agree,
    gather_with_rows,
    is_distributed,
    reduce_scatter,
    select_rows,
    sizes_tensor,
    warn_if_stale,
)
from shared_distributed import all_gather_same_dim as core_same_dim

__all__ = ["AllGather", "AllGatherFunction", "all_gather_same_dim", "all_gather_variable_dim"]


def all_gather_same_dim(t: Tensor) -> list[Tensor]:
    """Every rank's tensor, all of one shape, as a list."""
    return core_same_dim(t)


def all_gather_variable_dim(t: Tensor, dim: int = 0, sizes: Any = None) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` and the sizes as a LongTensor."""
    gathered, found, _ = gather_with_rows(t, dim, sizes)
    return gathered, sizes_tensor(found, t.device)


class AllGatherFunction(Function):
    """`apply(x, dim, sizes, all_reduce_grads)`: the gathered tensor, and the sizes as a LongTensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Any, all_reduce_grads: bool) -> tuple[Tensor, Tensor]:
        gathered, ctx.sizes, ctx.rows = gather_with_rows(x, dim, sizes)
        ctx.dim, ctx.all_reduce_grads = dim, all_reduce_grads
        return gathered, sizes_tensor(ctx.sizes, x.device)

    @staticmethod
    def backward(ctx: Any, grads: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        if ctx.all_reduce_grads:
            return reduce_scatter(grads, ctx.dim, sizes=ctx.sizes), None, None, None
        return select_rows(grads, ctx.dim, ctx.rows), None, None, None


class AllGather(nn.Module):
    """`(… n_r …) -> (… sum(n) …)` and the sizes; gradient: own slice, or its sum over ranks."""

    def __init__(self, dim: int, *, all_reduce_grads: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.all_reduce_grads = all_reduce_grads
        self.is_distributed = is_distributed()  # asked once: a process group made later is not seen

    def forward(self, x: Tensor, sizes: Any = None) -> tuple[Tensor, Tensor | None]:
        if not self.is_distributed:
            # modules pickled by the original have no such attribute
            if not getattr(self, "_warned", False):
                remedy = "Build it after init_process_group."
                # torch calls a module through two functions of its own
                self._warned = warn_if_stale("this AllGather was built", remedy, frames_up=4)
            return x, None
        if self.all_reduce_grads:  # all ranks enter the summed backward, or none does
            x, _, sizes = agree("AllGather", x, self.dim, sizes, grad="sum")
        gathered: tuple[Tensor, Tensor] = AllGatherFunction.apply(x, self.dim, sizes, self.all_reduce_grads)
        return gathered
