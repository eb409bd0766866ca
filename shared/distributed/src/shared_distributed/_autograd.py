# SPDX-License-Identifier: MIT
"""How gradients flow: gather and reduce-scatter, each the other's backward."""

from typing import Any, Literal

from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup

from ._agreement import agree
from ._sizes import RowLayout, Sizes
from ._transport import gather_rows, sum_rows
from ._world import is_distributed


def all_gather(
    x: Tensor,
    dim: int = 0,
    *,
    sizes: Sizes | None = None,
    grad: Literal["sum", "local"] = "sum",
    group: ProcessGroup | None = None,
) -> tuple[Tensor, tuple[int, ...]]:
    """Gather tensors whose size along `dim` differs from rank to rank; differentiable.

        (… n_r …) on rank r  ->  (… sum(n) …) on every rank, and the sizes (n_0, …, n_W-1)

    Args:
        x: any dense tensor; all ranks agree on dtype and on every dimension but `dim`.
        dim: where to concatenate; may be negative.
        sizes: every rank's size along `dim`, if known. Saves the size exchange, and with it the
            check that the ranks' calls fit together (see `SHARED_DISTRIBUTED_CHECK` in the README).
        grad: "sum", the true gradient: own slice of the gradient summed over ranks, a collective
            in the backward. "local": own slice of this rank's gradient, no communication.
        group: the process group; its ranks are counted within the group.

    Without a process group, or alone in it, `x` itself comes back with its one size.

    >>> gathered, sizes = all_gather(torch.ones(3, 2))
    >>> sizes
    (3,)
    """
    x, dim, agreed = agree("all_gather", x, dim, sizes, grad=grad, group=group)
    if not is_distributed(group):
        return x, agreed
    gathered: Tensor = _Gather.apply(x, dim, agreed, grad, group)
    return gathered, agreed


def reduce_scatter(x: Tensor, dim: int = 0, *, sizes: Sizes, group: ProcessGroup | None = None) -> Tensor:
    """Sum over ranks, and keep this rank's rows: the adjoint of `all_gather`; differentiable.

        (… sum(n) …) on every rank  ->  (… n_r …) on rank r

    Sums of numbers narrower than 32 bits are accumulated in 32 bits or more. Bools are or-ed.

    >>> reduce_scatter(torch.ones(3, 2), sizes=[3]).shape
    torch.Size([3, 2])
    """
    x, dim, agreed = agree("reduce_scatter", x, dim, sizes, grad="sum", group=group)
    if not is_distributed(group):
        return x
    scattered: Tensor = _ReduceScatter.apply(x, dim, agreed, group)
    return scattered


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: tuple[int, ...], grad: str, group: ProcessGroup | None) -> Tensor:
        ctx.dim, ctx.sizes, ctx.grad, ctx.group = dim, sizes, grad, group
        return gather_rows(x, dim, sizes, group)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        if ctx.grad == "local":
            own = RowLayout(ctx.sizes, group=ctx.group).own(grads, ctx.dim)
        else:
            own = _ReduceScatter.apply(grads, ctx.dim, ctx.sizes, ctx.group)
        return own, None, None, None, None


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: tuple[int, ...], group: ProcessGroup | None) -> Tensor:
        ctx.dim, ctx.sizes, ctx.group = dim, sizes, group
        return sum_rows(x, dim, sizes, group)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, None, None, None]:
        gathered = _Gather.apply(grads, ctx.dim, ctx.sizes, "sum", ctx.group)
        return gathered, None, None, None
