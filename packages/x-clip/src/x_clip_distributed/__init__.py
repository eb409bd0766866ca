# SPDX-License-Identifier: MIT
"""The `distributed.py` of x-clip, over the shared core.

>>> all_gather_variable_dim(torch.ones(3, 2))[1]
tensor([3])
"""

from typing import Any

from torch import Tensor

from shared_distributed.adapters import (
    _gather,
    _GatherFunction,
    _is_distributed,
    all_gather_variable_dim,
    pad_dim_to,
)

__all__ = ["AllGather", "all_gather", "all_gather_variable_dim", "pad_dim_to"]


class AllGather(_GatherFunction):
    @staticmethod
    def apply(x: Tensor, dim: int, sizes: Any, all_reduce_grads: bool = False) -> tuple[Tensor, Tensor]:
        """`(… n_r …) -> (… sum(n) …)` and the sizes."""
        assert _is_distributed()  # the original's answer to a missing process group, asked at every call
        return _gather(x, dim, sizes, all_reduce_grads)


all_gather = AllGather.apply
