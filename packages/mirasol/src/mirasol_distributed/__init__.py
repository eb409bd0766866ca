# SPDX-License-Identifier: MIT
"""The `distributed.py` of mirasol, over the shared core.

>>> get_is_distributed()  # alone: do not gather
False
>>> all_gather_variable_dim(torch.ones(3, 2))[1]
tensor([3])
"""

from collections.abc import Callable
from functools import cache, update_wrapper
from typing import Any

from torch import Tensor
from torch.autograd import Function

from shared_distributed import gather_with_rows, is_distributed, pad_dim_to, select_rows, sizes_tensor, warn_if_stale

__all__ = ["AllGather", "all_gather", "all_gather_variable_dim", "get_is_distributed", "pad_dim_to"]


class _Remembered:
    """functools.cache that looks on hits too: a "no" from before the process group is warned about."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._cached = cache(ask)
        self._warned = False
        self.cache_info = self._cached.cache_info
        update_wrapper(self, ask)

    def __call__(self) -> bool:
        answer = self._cached()
        if not answer and not self._warned:
            self._warned = warn_if_stale(
                "get_is_distributed() was first asked", "Call its cache_clear() once it is up."
            )
        return answer

    def cache_clear(self) -> None:
        self._cached.cache_clear()
        self._warned = False

    def __reduce__(self) -> str:  # pickled by name, as a function is
        return "get_is_distributed"


@_Remembered
def get_is_distributed() -> bool:
    """Whether there is more than one rank. Asked once in a process."""
    return is_distributed()


def all_gather_variable_dim(t: Tensor, dim: int = 0, sizes: Any = None) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` and the sizes as a LongTensor."""
    gathered, found, _ = gather_with_rows(t, dim, sizes)
    return gathered, sizes_tensor(found, t.device)


class AllGather(Function):
    """`apply(x, dim, sizes)`: `(… n_r …) -> (… sum(n) …)` and the sizes; gradient: own slice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Any) -> tuple[Tensor, Tensor]:
        assert get_is_distributed()  # the original's answer to a missing process group
        gathered, found, ctx.rows = gather_with_rows(x, dim, sizes)
        ctx.dim = dim
        return gathered, sizes_tensor(found, x.device)

    @staticmethod
    def backward(ctx: Any, grads: Tensor, _: Any) -> tuple[Tensor, None, None]:
        return select_rows(grads, ctx.dim, ctx.rows), None, None


all_gather = AllGather.apply
