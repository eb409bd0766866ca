# SPDX-License-Identifier: MIT
"""The `distributed.py` of mirasol, over the shared core.

>>> get_is_distributed()  # alone: do not gather
False
>>> all_gather_variable_dim(torch.ones(3, 2))[1]
tensor([3])
"""

from typing import Any

from torch import Tensor

from shared_distributed.adapters import (
    _asked_once,
    _gather,
    _GatherFunction,
    _is_distributed,
    all_gather_variable_dim,
    pad_dim_to,
)

__all__ = ["AllGather", "all_gather", "all_gather_variable_dim", "get_is_distributed", "pad_dim_to"]


@_asked_once
def get_is_distributed() -> bool:
    """Whether there is more than one rank, asked once in a process. Warns where the answer is out of date."""
    return _is_distributed()


class AllGather(_GatherFunction):
    @staticmethod
    def apply(x: Tensor, dim: int, sizes: Any, all_reduce_grads: bool = False) -> tuple[Tensor, Tensor]:
        """`(… n_r …) -> (… sum(n) …)` and the sizes."""
        assert get_is_distributed()  # the original's answer to a missing process group
        return _gather(x, dim, sizes, all_reduce_grads)


all_gather = AllGather.apply
