# SPDX-License-Identifier: MIT
"""For adapters: what several of the original files have in common.

A vendored file is made of the heart (`_errors`, `_world`, `_agree`, `_move`, `_differentiate`), of what its adapter
takes from here, and of the adapter. There `_Call` is the heart's; here it is the package's, which also compiles and
names the ranks that fail. Names with an underscore are for adapters alone, and stay private in a vendored file.

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

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from ._compiled import _Call
from ._differentiate import _Move
from ._errors import StaleAnswerWarning
from ._world import _has_shape, _is_compiling, _is_distributed, _long_tensor, _warn_once


def _gather(x: Tensor, dim: int, sizes: Any, all_reduce_grads: bool = False) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` in rank order, and every rank's size, with a gradient."""
    call, x = _Call(dim, sizes, all_reduce_grads).agree("AllGather", x)
    _, gathered = _Move.apply(call, False, torch.zeros(0, dtype=torch.float32, device=x.device), x)
    return gathered, _long_tensor(call.sizes, x.device)


class _GatherFunction(Function):
    """`apply` is `_gather`: in `forward` grad mode is always off. So a `backward` of a subclass's own is not called."""

    apply = staticmethod(_gather)

    @staticmethod  # entered by torch.compile, in the place of `apply`
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Any, all_reduce_grads: bool = False) -> tuple[Tensor, Tensor]:
        ctx.call, x = _Call(dim, sizes, all_reduce_grads).agree("AllGather", x)
        return ctx.call.gather(x), _long_tensor(ctx.call.sizes, x.device)

    @staticmethod
    def backward(ctx: Any, grads: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        own = ctx.call.sum(grads) if ctx.call.summed else ctx.call.own(grads)
        return (own, None, None, None)[: len(ctx.needs_input_grad)]  # as many as `apply` was given


def all_gather_variable_dim(t: Tensor, dim: int = 0, sizes: Any = None) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` in rank order, and every rank's size. Carries no gradient."""
    call, t = _Call(dim, sizes).agree("all_gather_variable_dim", t)
    return call.gather(t), _long_tensor(call.sizes, t.device)


def all_gather_same_dim(t: Tensor) -> list[Tensor]:
    """Every rank's tensor, all of one shape, 0-d too. Carries no gradient."""
    stacked = t.unsqueeze(0) if _has_shape(t) and t.layout == torch.strided else t
    call, stacked = _Call(0, None).agree("all_gather_same_dim", stacked)
    return [part.clone() for part in call._replace(sizes=[1] * len(call.sizes)).gather(stacked)]


def gather_sizes(t: Tensor, *, dim: int) -> Tensor:
    """Every rank's size along `dim`; the ranks may differ in all else."""
    usable = _has_shape(t) and not isinstance(dim, float) and any(dim == i for i in range(-t.ndim, t.ndim))
    rows = torch.empty((t.shape[dim], 0), dtype=torch.uint8, device=t.device) if usable else t  # all hear of it
    return _long_tensor(_Call(0 if usable else dim, None).agree("gather_sizes", rows)[0].sizes, t.device)


def split_by_rank(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """This rank's part of `x`, and every part's length."""
    if not dist.is_available():
        raise RuntimeError("there is no process group: this torch was built without torch.distributed")
    part = x[dist.get_rank()]
    sizes = [t.shape[0] for t in x] if isinstance(x, tuple) else [x.shape[1]] * x.shape[0]
    return part, _long_tensor(sizes, part.device)


def pad_dim_to(t: Tensor, length: int, dim: int = 0) -> Tensor:
    """Zeros at the end of `dim`, or rows cut off there: `(… n …) -> (… length …)`."""
    return torch.nn.functional.pad(t, (*(0, 0) * (t.ndim - dim % t.ndim - 1), 0, length - t.shape[dim]))


def has_only_one_value(t: Tensor) -> Tensor:
    return (t == t[0]).all()


def exists(val: Any) -> bool:
    return val is not None
