# SPDX-License-Identifier: MIT
"""How gradients flow: gather and reduce-scatter, each the other's backward."""

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor
from torch.autograd import Function

from ._agreement import agree
from ._several import agree_on_all
from ._sizes import Sizes, rows_of, select_rows
from ._transport import gather_rows, start_gather, sum_rows
from ._world import Group, is_compiling, is_distributed, rank_and_world

T = TypeVar("T", Tensor, list[Tensor], tuple[Tensor, ...], dict[str, Tensor])


class Gathering(Generic[T]):
    """An `all_gather` under way."""

    def __init__(self, x: T, dim: int, sizes: Sizes | None, grad: str, group: Group) -> None:
        self._x: Any = x
        self._grad, self._group = grad, group
        # a dict's tensors go by their keys, in whatever order each rank put them in
        self._keys: list[str] | None = None
        if isinstance(x, dict):
            self._keys = sorted(x, key=str)
            tensors = [x[key] for key in self._keys]
        else:
            tensors = list(x) if isinstance(x, (list, tuple)) else [x]
        self._tensors, self._dims, self._sizes = agree_on_all(
            "all_gather", tensors, dim, sizes, grad=grad, group=group, keys=self._keys
        )
        self._waits: list[Callable[[], Tensor]] | None = None
        if is_distributed(group) and not is_compiling():
            calls = zip(self._tensors, self._dims, strict=True)
            self._waits = [start_gather(tensor, front, self._sizes, group) for tensor, front in calls]

    def wait(self) -> tuple[T, tuple[int, ...]]:
        """The gathered tensor, or tensors in a container like the one passed in, and the sizes."""
        if not is_distributed(self._group):
            return self._x, self._sizes
        how = (self._dims, self._sizes, self._grad, self._group, self._waits)
        gathered: Any = _Gather.apply(*how, *self._tensors)
        if isinstance(self._x, Tensor):
            return gathered[0], self._sizes
        if self._keys is not None:
            by_key = dict(zip(self._keys, gathered, strict=True))
            gathered = [(key, by_key[key]) for key in self._x]
        kind = type(self._x)
        return getattr(kind, "_make", kind)(gathered), self._sizes  # a namedtuple is made in its own way


def all_gather(
    x: T, dim: int = 0, *, sizes: Sizes | None = None, grad: Literal["sum", "local"] = "sum", group: Group = None
) -> tuple[T, tuple[int, ...]]:
    """Gather tensors whose size along `dim` differs from rank to rank; differentiable.

        (… n_r …) on rank r  ->  (… sum(n) …) on every rank, and the sizes (n_0, …, n_W-1)

    Args:
        x: any dense tensor; all ranks agree on dtype and on every dimension but `dim`. Or a list, tuple
            or dict of tensors with one size along `dim`: one size exchange for all, and their transfers
            overlap. The ranks' dicts have the same keys, in any order.
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
    return all_gather_async(x, dim, sizes=sizes, grad=grad, group=group).wait()


def all_gather_async(
    x: T, dim: int = 0, *, sizes: Sizes | None = None, grad: Literal["sum", "local"] = "sum", group: Group = None
) -> Gathering[T]:
    """Start an `all_gather`, and go on; `wait()` on what it returns gives the same result, with its gradient.

    Until then `x` must not be written to. Every rank starts its gathers in the same order.

    >>> gathering = all_gather_async(torch.ones(3, 2))
    >>> gathered, sizes = gathering.wait()
    """
    return Gathering(x, dim, sizes, grad, group)


def reduce_scatter(x: Tensor, dim: int = 0, *, sizes: Sizes, group: Group = None) -> Tensor:
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
    # one Function for all tensors of a call: autograd's zeros stand in for those that a rank's loss leaves
    # out, so that every rank enters the same collectives in the same order
    @staticmethod
    def forward(
        ctx: Any,
        dims: list[int],
        sizes: tuple[int, ...],
        grad: str,
        group: Group,
        waits: list[Callable[[], Tensor]] | None,
        *xs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.dims, ctx.sizes, ctx.grad, ctx.group = dims, sizes, grad, group
        if waits is None:
            gathered = tuple(gather_rows(x, dim, sizes, group) for x, dim in zip(xs, dims, strict=True))
        else:
            gathered = tuple(wait() for wait in waits)
        ctx.mark_non_differentiable(
            *[y for y, wanted in zip(gathered, ctx.needs_input_grad[5:], strict=True) if not wanted]
        )
        return gathered

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        own: list[Tensor | None] = []
        for g, dim, wanted in zip(grads, ctx.dims, ctx.needs_input_grad[5:], strict=True):
            if not wanted:
                own.append(None)
            elif ctx.grad == "local":
                own.append(select_rows(g, dim, rows_of(rank_and_world(ctx.group)[0], ctx.sizes)))
            else:
                own.append(_ReduceScatter.apply(g, dim, ctx.sizes, ctx.group))
        return None, None, None, None, None, *own


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: tuple[int, ...], group: Group) -> Tensor:
        ctx.dim, ctx.sizes, ctx.group = dim, sizes, group
        return sum_rows(x, dim, sizes, group)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, None, None, None]:
        (gathered,) = _Gather.apply([ctx.dim], ctx.sizes, "sum", ctx.group, None, grads)
        return gathered, None, None, None
