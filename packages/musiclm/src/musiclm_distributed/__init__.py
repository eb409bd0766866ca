# SPDX-License-Identifier: MIT
"""The `distributed.py` of musiclm, over the shared core.

>>> AllGather(dim=1)(torch.ones(2, 3))[1] is None  # alone: the input itself, and no sizes
True
>>> all_gather_variable_dim(torch.ones(2, 3), dim=1)[1]
tensor([3])
"""

from typing import Any

from torch import Tensor, nn

from shared_distributed.adapters import (
    StaleAnswerWarning,
    _gather,
    _GatherFunction,
    _is_compiling,
    _is_distributed,
    _warn_once,
    all_gather_same_dim,
    all_gather_variable_dim,
)

__all__ = ["AllGather", "AllGatherFunction", "all_gather_same_dim", "all_gather_variable_dim"]


AllGatherFunction = _GatherFunction


class AllGather(nn.Module):
    """`(… n_r …) -> (… sum(n) …)` and the sizes. Not distributed, asked when it is built: `x` itself and None."""

    def __init__(self, dim: int, *, all_reduce_grads: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.all_reduce_grads = all_reduce_grads
        self.is_distributed = _is_distributed()

    def forward(self, x: Tensor, sizes: Any = None) -> tuple[Tensor, Tensor | None]:
        if self.is_distributed:
            return _gather(x, self.dim, sizes, self.all_reduce_grads)
        if _is_distributed() and not _is_compiling():
            message = "an AllGather was built before init_process_group: it gathers nothing"
            _warn_once(message, StaleAnswerWarning, 4)  # past the two calls of nn.Module
        return x, None
