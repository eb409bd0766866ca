# SPDX-License-Identifier: MIT
"""For adapters: what several of the original files have in common.

A vendored file is made of the heart (`_errors`, `_agree`, `_ranks`, `_gradient`), of what its adapter takes from
here, and of the adapter. `_agree` and `_graph_break` are defined twice. In a vendored file they are the
heart's; here they are those of `_compiled`: the package's own ways to send rows, in one graph under torch.compile.
Names with an underscore are for adapters alone, and stay private in a vendored file.

>>> all_gather_variable_dim(torch.ones(3, 2), dim=1)[1]
tensor([2])
>>> all_gather_same_dim(torch.tensor(7.0))
[tensor(7.)]
>>> gather_sizes(torch.ones(3, 2), dim=0)
tensor([3])
>>> split_by_rank((torch.ones(3, 2),))[1]
tensor([3])
>>> pad_dim_to(torch.ones(2), 3)
tensor([1., 1., 0.])
>>> has_only_one_value(torch.tensor([4, 4, 5]))
tensor(False)
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from operator import index
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from ._agree import _has_shape
from ._compiled import _agree, _graph_break
from ._errors import StaleAnswerWarning, _warn_once
from ._gradient import _Gather
from ._ranks import _is_compiling, _is_distributed, _long_tensor, _own_rows, _Ranks


@_graph_break
def _gather(x: Tensor, dim: int, sizes: Any, all_reduce_grads: bool = False) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` in rank order, and every rank's size, with a gradient."""
    ranks, x, dim, sizes = _agree("AllGather", x, dim, sizes, all_reduce_grads)
    tie = torch.zeros(0, dtype=torch.float32, device=x.device)
    _, gathered = _Gather.apply(ranks, dim, sizes, all_reduce_grads, False, tie, x)
    return gathered, _long_tensor(sizes, x.device)


class _GatherFunction(Function):
    """`apply` is `_gather`: in `forward` grad mode is always off. So a `backward` of a subclass is not called."""

    apply = staticmethod(_gather)

    @staticmethod  # entered by torch.compile, in the place of `apply`
    @_graph_break
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Any, all_reduce_grads: bool = False) -> tuple[Tensor, Tensor]:
        ctx.ranks, x, ctx.dim, ctx.sizes = _agree("AllGather", x, dim, sizes, all_reduce_grads)
        ctx.summed = all_reduce_grads
        return ctx.ranks.gather(x, ctx.dim, ctx.sizes), _long_tensor(ctx.sizes, x.device)

    @staticmethod
    def backward(ctx: Any, grads: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        if ctx.summed:
            own = ctx.ranks.sum(grads, ctx.dim, ctx.sizes)
        else:
            own = _own_rows(ctx.ranks, grads, ctx.dim, ctx.sizes)
        return (own, None, None, None)[: len(ctx.needs_input_grad)]  # as many as `apply` was given


class _GatherModule(nn.Module):
    """`(… n_r …) -> (… sum(n) …)` and the sizes. Without a process group, torch's own error."""

    def __init__(self, *, dim: int = 0, all_reduce_grads: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.all_reduce_grads = all_reduce_grads

    def forward(self, x: Tensor, sizes: Any = None) -> tuple[Tensor, Tensor]:
        return _gather(x, self.dim, sizes, getattr(self, "all_reduce_grads", False))  # an old pickle has none


class _GatherOrView(_GatherFunction):
    @staticmethod
    def apply(x: Tensor, dim: int, sizes: Any, all_reduce_grads: bool = False) -> tuple[Tensor, Tensor | None]:
        """`(… n_r …) -> (… sum(n) …)` and the sizes. Not distributed, asked at every call: a view of `x`, and None."""
        if _is_distributed():
            return _gather(x, dim, sizes, all_reduce_grads)
        return x.view_as(x), None


def _asked_once(question: Callable[[], Any]) -> Any:
    """The question under `functools.cache`. Warns where a process group that came up later has another answer."""
    answer = cache(question)

    @wraps(question)
    def ask() -> Any:  # a hit of the cache itself runs no code of ours
        if _is_distributed() and not _is_compiling() and answer() != question():
            message = f"{question.__name__}() was first asked before init_process_group: call its cache_clear()"
            _warn_once(message, StaleAnswerWarning, 2)
        return answer()

    ask.cache_info, ask.cache_clear = answer.cache_info, answer.cache_clear
    return ask


@_graph_break
def all_gather_variable_dim(t: Tensor, dim: int = 0, sizes: Any = None) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` in rank order, and every rank's size. Carries no gradient."""
    ranks, t, dim, sizes = _agree("all_gather_variable_dim", t, dim, sizes)
    return ranks.gather(t, dim, sizes), _long_tensor(sizes, t.device)


@_graph_break
def all_gather_same_dim(t: Tensor) -> list[Tensor]:
    """Every rank's tensor, all of one shape, 0-d too. Carries no gradient."""
    stacked = t.unsqueeze(0) if _has_shape(t) and t.layout == torch.strided else t
    ranks, stacked, dim, sizes = _agree("all_gather_same_dim", stacked, 0, None)
    gathered = ranks.gather(stacked, dim, [1] * len(sizes))
    return [part.clone() for part in gathered]


@_graph_break
def gather_sizes(t: Tensor, *, dim: int) -> Tensor:
    """Every rank's size along `dim`; the ranks may differ in all else."""
    if not isinstance(dim, int):
        with suppress(Exception):  # every rank raises it, below
            dim = index(dim)
    if _has_shape(t) and isinstance(dim, int) and -t.ndim <= dim < t.ndim:
        t = torch.empty((t.shape[dim], 0), dtype=torch.uint8, device=t.device)
        dim = 0
    _, t, _, sizes = _agree("gather_sizes", t, dim, None)
    return _long_tensor(sizes, t.device)


def split_by_rank(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """This rank's part of `x`, and every part's length."""
    part = x[_Ranks(None).rank]
    if isinstance(x, tuple):
        sizes = [t.shape[0] for t in x]
    else:
        sizes = [x.shape[1]] * x.shape[0]
    return part, _long_tensor(sizes, part.device)


def pad_dim_to(t: Tensor, length: int, dim: int = 0) -> Tensor:
    """Zeros at the end of `dim`, or rows cut off there: `(… n …) -> (… length …)`."""
    dims_behind = t.ndim - 1 - dim % t.ndim
    padding = [0, 0] * dims_behind + [0, length - t.shape[dim]]
    return torch.nn.functional.pad(t, padding)


def has_only_one_value(t: Tensor) -> Tensor:
    return (t == t[0]).all()


def exists(val: Any) -> bool:
    return val is not None


def default(val: Any, d: Any) -> Any:
    return val if exists(val) else d


def divisible_by(num: int, den: int) -> bool:
    return (num % den) == 0
