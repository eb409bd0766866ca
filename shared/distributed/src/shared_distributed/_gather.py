# SPDX-License-Identifier: MIT
"""What users call: a gather of one tensor or several, at once or started, and its adjoint."""

import os
from collections.abc import Callable
from operator import index
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import torch.distributed as dist
from torch import Tensor

from ._agree import _has_shape
from ._compiled import agree
from ._containers import pack, unpack
from ._errors import BadInputError, _warn_once
from ._layout import RowLayout, Sizes, ints_of
from ._ranks import _is_compiling, _is_distributed
from ._together import move_all
from ._usable import problem_of_sum

Grad: TypeAlias = Literal["sum", "local"]
T = TypeVar("T", bound=Tensor | list[Tensor] | tuple[Tensor, ...] | dict[str, Tensor])


def is_distributed(group: Any = None) -> bool:
    """Whether there is a process group, and more than one rank in it. Asked anew at every call.

    >>> is_distributed()
    False
    """
    return _is_distributed(group_of(group))


def group_of(group: Any) -> Any:
    """A process group, also from what torch's functional collectives take for one: a 1-d mesh, or a mesh and a dim."""
    if group is None or not dist.is_available() or not dist.is_initialized() or isinstance(group, dist.ProcessGroup):
        return group
    mesh, *dim = group if isinstance(group, tuple) and len(group) == 2 else (group,)
    if hasattr(mesh, "get_group") and (dim or mesh.ndim == 1):
        group = mesh.get_group(*dim)
    try:
        member = dist.get_rank(group) >= 0
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise BadInputError(f"group={group!r} is not a process group; a mesh has one as mesh.get_group(dim)") from error
    if not member:
        raise BadInputError("this process is not a member of the group")
    return group


class Gathering(Generic[T]):
    """An `all_gather` under way."""

    def __init__(self, x: T, dim: int, sizes: Sizes | None, grad: str, group: Any, check: bool | None) -> None:
        self._x: Any = x
        self._unfinished: list[Callable[[], None]] = []
        operation, self._keys, xs, problem = unpack("all_gather", x)
        if grad not in ("sum", "local"):
            problem = problem or f"grad must be 'sum' or 'local', got {grad!r}"
        if check is False and sizes is None:
            problem = problem or "check=False needs sizes: without them the ranks have to ask each other"
        group = group_of(group)
        if not _is_distributed(group):
            self._gathered = xs
            self._sizes = RowLayout(_check_alone(xs, problem, dim, sizes), rank=0)
            return

        summed = grad == "sum"
        ranks, xs, dim, found = agree(operation, xs, dim, sizes, summed, group, check=bool(check), problem=problem)
        self._sizes = RowLayout(found, rank=ranks.rank)
        if not _is_compiling():
            ranks.unfinished = self._unfinished  # gathers are only started
        self._gathered = move_all(ranks, xs, dim, found, summed)
        if not _is_compiling():
            ranks.unfinished = None  # what their derivatives gather is finished there

    def __del__(self) -> None:
        for finish in getattr(self, "_unfinished", ()):  # never waited for, but the other ranks have their part of it
            finish()

    def wait(self) -> tuple[T, RowLayout]:
        """The gathered tensor, or tensors in a container like the one passed in, and the sizes."""
        while self._unfinished:
            self._unfinished.pop(0)()
        return pack(self._x, self._keys, self._gathered), self._sizes


def _check_alone(xs: list[Any], problem: str, dim: int, sizes: Sizes | None) -> tuple[int, ...]:
    """The one size of tensors that no other rank has a part of; BadInputError where they cannot be used."""
    if problem:
        raise BadInputError(problem)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not (dist.is_available() and dist.is_initialized()):
        text = "WORLD_SIZE says that there are other ranks, but there is no process group: nothing is gathered"
        _warn_once(f"{text}. Call torch.distributed.init_process_group() first.", UserWarning, 4)
    try:
        found = {x.size(index(dim)) for x in xs}  # raises if out of range
        given = None if sizes is None else ints_of(sizes)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        shapes = [tuple(x.shape) if _has_shape(x) else type(x) for x in xs]
        raise BadInputError(f"cannot gather {shapes} along dim {dim}, sizes {sizes}: {error}") from error
    if len(found) != 1 or given not in (None, tuple(found)):
        raise BadInputError(f"sizes {given} for 1 rank with {sorted(found)} rows along dim {dim}")
    return tuple(found)


def all_gather(
    x: T, dim: int = 0, *, sizes: Sizes | None = None, grad: Grad = "sum", group: Any = None, check: bool | None = None
) -> tuple[T, RowLayout]:
    """Gather tensors whose size along `dim` differs from rank to rank; differentiable.

        (… n_r …) on rank r  ->  (… sum(n) …) on every rank, and the sizes (n_0, …, n_W-1), a `RowLayout`

    Args:
        x: any dense tensor; all ranks agree on dtype and on every dimension but `dim`. Or a list, tuple
            or dict of tensors with one size along `dim`: one size exchange for all, and their transfers
            overlap. The ranks' dicts have the same keys, in any order.
        dim: where to concatenate; may be negative.
        sizes: every rank's size along `dim`, if known. Saves the size exchange, and with it the
            check that the ranks' calls fit together (see `check`).
        grad: "sum", the true gradient: own slice of the gradient summed over ranks, a collective
            in the backward. "local": own slice of this rank's gradient, no communication.
        group: the process group, a 1-d mesh, or a mesh and its dim; ranks are counted within the group.
        check: whether the ranks agree first, the same on every rank. By default they do if `sizes` are not given, and
            for every call if the environment variable SHARED_DISTRIBUTED_CHECK is 1.

    Without a process group, or alone in it, `x` itself comes back with its one size.

    >>> gathered, sizes = all_gather(torch.ones(3, 2))
    >>> sizes
    (3,)
    """
    return Gathering(x, dim, sizes, grad, group, check).wait()


def all_gather_async(
    x: T, dim: int = 0, *, sizes: Sizes | None = None, grad: Grad = "sum", group: Any = None, check: bool | None = None
) -> Gathering[T]:
    """Start an `all_gather`, and go on; `wait()` on what it returns gives the same result, with its gradient.

    Until then `x` must not be written to. Every rank starts its gathers in the same order. Small ones over gloo are
    complete when this returns.

    >>> gathering = all_gather_async(torch.ones(3, 2))
    >>> gathered, sizes = gathering.wait()
    """
    return Gathering(x, dim, sizes, grad, group, check)


def reduce_scatter(x: T, dim: int = 0, *, sizes: Sizes, group: Any = None, check: bool = True) -> T:
    """Sum over ranks, and keep this rank's rows: the adjoint of `all_gather`; differentiable.

        (… sum(n) …) on every rank  ->  (… n_r …) on rank r

    Takes a tensor, or a list, tuple or dict of tensors, as `all_gather` does. Sums of numbers narrower than 32 bits are
    accumulated in 32 bits or more. Bools are or-ed. The ranks agree first, unless `check=False` says that every rank
    passes the same sizes, and wants a gradient or none does.

    >>> reduce_scatter(torch.ones(3, 2), sizes=[3]).shape
    torch.Size([3, 2])
    """
    operation, keys, xs, problem = unpack("reduce_scatter", x)
    group = group_of(group)
    if not _is_distributed(group):
        _check_alone(xs, problem, dim, sizes)
        return x
    # the ranks agree on this rank's rows, whose size is in `sizes`
    try:
        parts = _own_parts(xs, dim, sizes, dist.get_rank(group))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        parts = xs
        problem = problem or f"expected dense tensors whose size along dim {dim} is the sum of sizes {sizes}"
    for part in parts:
        problem = problem or problem_of_sum(part.dtype)
    ranks, parts, dim, found = agree(operation, parts, dim, sizes, True, group, check=check, problem=problem)
    for i, part in enumerate(parts):
        if part.requires_grad and not xs[i].requires_grad:  # another rank wants the gradient
            xs[i] = xs[i].detach().clone().requires_grad_()
    return pack(x, keys, move_all(ranks, xs, dim, found, True, is_adjoint=True))


def _own_parts(xs: list[Any], dim: int, sizes: Sizes, rank: int) -> list[Tensor]:
    """This rank's rows of each tensor; an error where sizes do not add up to theirs."""
    numbers = ints_of(sizes)
    dim = index(dim) if not _is_compiling() else dim
    if not isinstance(sizes, Tensor) and any(x.shape[dim] != sum(numbers) for x in xs):
        raise ValueError  # while compiling, split would raise on this rank alone
    return [x.split(numbers, dim)[rank] for x in xs]
