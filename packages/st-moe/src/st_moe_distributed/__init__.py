# SPDX-License-Identifier: MIT
"""The `distributed.py` of st-moe, over the shared core.

>>> AllGather(dim=0)(*split_by_rank((torch.ones(3, 2),)))[1]
tensor([3])
"""

from typing import Any

from torch import Tensor, nn

from shared_distributed.adapters import (
    _gather,
    _GatherFunction,
    all_gather_same_dim,
    all_gather_variable_dim,
    exists,
    gather_sizes,
    has_only_one_value,
    pad_dim_to,
    split_by_rank,
)

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


def default(val: Any, d: Any) -> Any:
    return val if exists(val) else d


def divisible_by(num: int, den: int) -> bool:
    return (num % den) == 0


AllGatherFunction = _GatherFunction


class AllGather(nn.Module):
    """`(… n_r …) -> (… sum(n) …)` and the sizes. Without a process group, torch's own error."""

    def __init__(self, *, dim: int = 0, all_reduce_grads: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.all_reduce_grads = all_reduce_grads

    def forward(self, x: Tensor, sizes: Any = None) -> tuple[Tensor, Tensor]:
        return _gather(x, self.dim, sizes, getattr(self, "all_reduce_grads", False))  # an old pickle has none
