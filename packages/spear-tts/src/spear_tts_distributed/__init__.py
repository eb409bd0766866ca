# SPDX-License-Identifier: MIT
"""The `distributed.py` of spear-tts, over the shared core.

>>> gathered, sizes = all_gather(torch.ones(3, 2), 0, None)
>>> sizes is None  # alone
True
"""

from typing import Any

from torch import Tensor

from shared_distributed.adapters import _gather, _GatherFunction, _is_distributed, all_gather_variable_dim

__all__ = ["AllGather", "all_gather", "all_gather_variable_dim"]


class AllGather(_GatherFunction):
    @staticmethod
    def apply(x: Tensor, dim: int, sizes: Any, all_reduce_grads: bool = False) -> tuple[Tensor, Tensor | None]:
        """`(… n_r …) -> (… sum(n) …)` and the sizes. Not distributed, asked at every call: a view of `x`, and None."""
        return _gather(x, dim, sizes, all_reduce_grads) if _is_distributed() else (x.view_as(x), None)


all_gather = AllGather.apply
