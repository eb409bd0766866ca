# SPDX-License-Identifier: MIT
"""The `distributed.py` of mirasol, over the shared core.

>>> get_is_distributed()  # alone: do not gather
False
>>> all_gather_variable_dim(torch.ones(3, 2))[1]
tensor([3])
"""

from functools import cache
from typing import Any

from torch import Tensor

from shared_distributed.adapters import (
    StaleAnswerWarning,
    _gather,
    _GatherFunction,
    _is_compiling,
    _is_distributed,
    _warn_once,
    all_gather_variable_dim,
    pad_dim_to,
)

__all__ = ["AllGather", "all_gather", "all_gather_variable_dim", "get_is_distributed", "pad_dim_to"]


_asked = cache(lambda: _is_distributed())


def get_is_distributed() -> bool:
    """Whether there is more than one rank, asked once in a process. Warns where the answer is out of date."""
    if not _asked() and _is_distributed() and not _is_compiling():
        message = "get_is_distributed() was first asked before init_process_group: call its cache_clear()"
        _warn_once(message, StaleAnswerWarning, 2)
    return _asked()


# as functools.cache has them, but that runs no code of ours on a hit
vars(get_is_distributed).update({name: getattr(_asked, name) for name in ("__wrapped__", "cache_info", "cache_clear")})


class AllGather(_GatherFunction):
    @staticmethod
    def apply(x: Tensor, dim: int, sizes: Any, all_reduce_grads: bool = False) -> tuple[Tensor, Tensor]:
        """`(… n_r …) -> (… sum(n) …)` and the sizes."""
        assert get_is_distributed()  # the original's answer to a missing process group
        return _gather(x, dim, sizes, all_reduce_grads)


all_gather = AllGather.apply
