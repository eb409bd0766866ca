# SPDX-License-Identifier: MIT
"""What users call: a gather of one tensor or several, at once or started, and its adjoint."""

import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from copy import copy
from operator import index
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ._compiled import _Call
from ._differentiate import _Move
from ._errors import BadInputError
from ._layout import RowLayout, Sizes, ints_of
from ._world import _has_shape, _is_compiling, _is_distributed, _warn_once

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
        raise BadInputError(f"group={group!r} is no process group; a mesh has one as mesh.get_group(dim)") from error
    if not member:
        raise BadInputError("this process is not a member of the group")
    return group


def _opened(op: str, x: Any) -> tuple[str, Any, list[Any]]:
    """What the other ranks are told; the tensors' places in the container, if `x` is one; the tensors."""
    if isinstance(x, Tensor):
        return op, None, [x]
    if not isinstance(x, (dict, list, tuple)):
        return op, None, _traceable([x])
    # a dict's tensors go by their keys, in whatever order each rank put them in
    places = sorted(x, key=repr) if isinstance(x, dict) else range(len(x))
    xs = [x[place] for place in places]
    try:
        _closed(x, places, xs)
    except Exception as error:  # told to every rank, before anything moves
        xs = [BadInputError(f"cannot make another {type(x)}: {error}"), *xs]
    return f"{op}{ascii(places) if isinstance(x, dict) else [len(x)]}", places, _traceable(xs)


def _traceable(xs: list[Any]) -> list[Any]:
    """While compiling, an empty tensor for what is none: the error is raised when the graph runs, on every rank."""
    usable = [isinstance(x, (Exception, Tensor)) for x in xs]
    if all(usable) or not _is_compiling():
        return xs
    empty = [x if fits else torch.empty(0, device="cpu") for x, fits in zip(xs, usable, strict=True)]
    return [BadInputError(f"expected a dense torch.tensor, got {type(xs[usable.index(False)])}"), *empty]


def _closed(x: Any, places: Any, tensors: list[Any]) -> Any:
    """The tensors in a container like `x`, or the one there is."""
    if places is None:
        return tensors[0]
    if isinstance(x, tuple):
        return getattr(type(x), "_make", type(x))(tensors)  # a namedtuple is made in its own way
    filled = x.copy() if type(x) in (dict, list, OrderedDict, defaultdict) else copy(x)
    for place, tensor in zip(places, tensors, strict=True):
        filled[place] = tensor
    return filled


class Gathering(Generic[T]):
    """An `all_gather` under way."""

    def __init__(self, x: T, dim: int, sizes: Sizes | None, grad: str, group: Any, check: bool | None) -> None:
        self._x: Any = x
        self._finish: list[Callable[[], None]] = []
        op, self._places, xs = _opened("all_gather", x)
        if grad not in ("sum", "local"):
            xs = [BadInputError(f"grad must be 'sum' or 'local', got {grad!r}"), *xs]
        if check is False and sizes is None:
            xs = [BadInputError("check=False needs sizes: without them the ranks have to ask each other"), *xs]
        if not _is_distributed(group := group_of(group)):
            self._gathered, self._sizes = xs, RowLayout(_check_alone(xs, dim, sizes), rank=0)
            return
        call, *tensors = _Call(dim, sizes, grad == "sum", group).agree(op, *xs, check=bool(check))
        self._sizes = RowLayout(call.sizes, rank=dist.get_rank(group))
        if _is_compiling():
            self._gathered = _gather_all(call, tensors)
        else:
            call.steps = self._finish
            self._gathered = _gather_all(call, tensors)
            call.steps = None  # what its derivatives gather is not only started

    def __del__(self) -> None:
        for finish in getattr(self, "_finish", ()):  # never waited for: the other ranks have their part of it
            finish()

    def wait(self) -> tuple[T, RowLayout]:
        """The gathered tensor, or tensors in a container like the one passed in, and the sizes."""
        while self._finish:
            self._finish.pop(0)()
        return _closed(self._x, self._places, self._gathered), self._sizes


def _gather_all(call: _Call, xs: list[Tensor], adjoint: bool = False) -> list[Tensor]:
    """Every tensor gathered, or summed by the adjoint, in one order of collectives on every rank."""
    if not call.summed:
        return [_differentiably(call, [x])[0] for x in xs]
    # one Function for all that want a summed gradient: autograd's zeros stand in for those that a rank's loss leaves
    # out, so that every rank enters the same sums in the same order
    joined = [x.requires_grad and torch.is_grad_enabled() for x in xs]
    moved = iter(_differentiably(call, [x for x, joins in zip(xs, joined, strict=True) if joins], adjoint))
    move = call.sum if adjoint else call.gather
    return [next(moved) if joins else move(x) for x, joins in zip(xs, joined, strict=True)]


def _differentiably(call: _Call, xs: list[Tensor], adjoint: bool = False) -> list[Tensor]:
    if xs:
        _, *xs = _Move.apply(call, adjoint, torch.zeros(0, dtype=torch.float32, device=xs[0].device), *xs)
    return xs


def _check_alone(xs: list[Any], dim: int, sizes: Sizes | None) -> tuple[int, ...]:
    """The one size of tensors that nobody else has a part of; BadInputError where they cannot be used."""
    for problem in [x for x in xs if isinstance(x, Exception)]:
        raise problem
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not (dist.is_available() and dist.is_initialized()):
        text = "WORLD_SIZE says that there are other ranks, but there is no process group: nothing is gathered"
        _warn_once(f"{text}. Call torch.distributed.init_process_group() first.", UserWarning, 5)
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
    op, places, xs = _opened("reduce_scatter", x)
    if not _is_distributed(group := group_of(group)):
        _check_alone(xs, dim, sizes)
        return x
    rank, tensors = dist.get_rank(group), [x for x in xs if not isinstance(x, Exception)]
    try:
        if not isinstance(sizes, Tensor) and any(x.shape[dim] != sum(sizes) for x in tensors):
            raise ValueError  # while compiling, split would raise on this rank alone
        own: list[Any] = [x if isinstance(x, Exception) else x.split(ints_of(sizes), dim)[rank] for x in xs]
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        text = f"expected dense tensors whose size along dim {dim} is the sum of sizes {sizes}"
        own = [*xs[: len(xs) - len(tensors)], BadInputError(text), *tensors]
    call, *agreed = _Call(dim, sizes, True, group).agree(op, *own, check=check)
    for i, part in enumerate(agreed):
        if part.requires_grad and not tensors[i].requires_grad:  # another rank wants the gradient
            tensors[i] = tensors[i].detach().clone().requires_grad_()
    return _closed(x, places, _gather_all(call, tensors, adjoint=True))
