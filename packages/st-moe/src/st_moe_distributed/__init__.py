# SPDX-License-Identifier: MIT
"""The `distributed.py` of st-moe, over the shared core.

>>> AllGather(dim=0)(*split_by_rank((torch.ones(3, 2),)))[1]
tensor([3])
"""

from typing import Any, TypeVar

from torch import Tensor, nn
from torch.autograd import Function

from shared_distributed import all_gather_same_dim as core_same_dim
from shared_distributed import gather_sizes as core_gather_sizes
from shared_distributed import gather_with_rows, has_only_one_value, pad_dim_to, select_rows, sizes_tensor
from shared_distributed import split_by_rank as core_split_by_rank

__all__ = [
    "AllGather",
    "AllGatherFunction",
    "all_gather_same_dim",
    "all_gather_variable_dim",
    "default",
    "divisible_by",
    "exists",
    "gather_sizes",
    "has_only_one_value",
    "pad_dim_to",
    "split_by_rank",
]

T = TypeVar("T")


def exists(val: object) -> bool:
    """Whether a value is not None."""
    return val is not None


def default(val: T | None, d: T) -> T:
    """The value, or `d` where it is None."""
    return d if val is None else val


def divisible_by(num: int, den: int) -> bool:
    """Whether `den` divides `num`."""
    return (num % den) == 0


def all_gather_same_dim(t: Tensor) -> list[Tensor]:
    """Every rank's tensor, all of one shape, as a list."""
    return core_same_dim(t)


def gather_sizes(t: Tensor, *, dim: int) -> Tensor:
    """Every rank's size along dim, as a LongTensor."""
    return core_gather_sizes(t, dim=dim)


def all_gather_variable_dim(t: Tensor, dim: int = 0, sizes: Any = None) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` and the sizes as a LongTensor."""
    gathered, found, _ = gather_with_rows(t, dim, sizes)
    return gathered, sizes_tensor(found, t.device)


class AllGatherFunction(Function):
    """`apply(x, dim, sizes)`: the gathered tensor, and the sizes as a LongTensor; gradient: own slice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Any) -> tuple[Tensor, Tensor]:
        gathered, found, ctx.rows = gather_with_rows(x, dim, sizes)
        ctx.dim = dim
        return gathered, sizes_tensor(found, x.device)

    @staticmethod
    def backward(ctx: Any, grads: Tensor, _: Any) -> tuple[Tensor, None, None]:
        return select_rows(grads, ctx.dim, ctx.rows), None, None


class AllGather(nn.Module):
    """`(… n_r …) -> (… sum(n) …)` and the sizes as a LongTensor; gradient: own slice."""

    def __init__(self, *, dim: int = 0) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, sizes: Any = None) -> tuple[Tensor, Tensor]:
        # never asks "are we distributed?": no process group is torch's own error
        gathered: tuple[Tensor, Tensor] = AllGatherFunction.apply(x, self.dim, sizes)
        return gathered


def split_by_rank(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """This rank's part, and every part's length as a LongTensor."""
    return core_split_by_rank(x)
