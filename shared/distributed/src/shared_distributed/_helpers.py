# SPDX-License-Identifier: MIT
"""What the adapters share: gathers that carry no gradient, and small tools around them.

Unlike `all_gather` these ask for a process group: without one they raise torch's own error, and
alone in one they gather (a copy) all the same.
"""

import warnings

import torch
from torch import Tensor
from torch.nn import functional

from ._agreement import agree, agree_on_sizes
from ._compile import opaque
from ._errors import StaleAnswerWarning
from ._sizes import Sizes, rows_of, sizes_tensor
from ._transport import empty_like, gather_rows
from ._world import Group, is_compiling, is_distributed, rank_and_world


def gather_with_rows(
    t: Tensor, dim: int = 0, sizes: Sizes | None = None, *, group: Group = None
) -> tuple[Tensor, Sizes, slice | Tensor]:
    """`(… n_r …) -> (… sum(n) …)`, every rank's size, and which rows are this rank's; carries no gradient.

    Sizes are ints and rows a slice, but in a compiled call that has to ask for its sizes: there both are
    tensors, since inside an autograd Function the compiler accepts no numbers read from one.

    >>> gathered, sizes, rows = gather_with_rows(torch.ones(3, 2))
    >>> rows
    slice(0, 3, None)
    """
    rank, _ = rank_and_world(group)  # torch's own error where there is no group
    if is_compiling() and sizes is None:
        unsized: tuple[Tensor, Tensor, Tensor] = _gather_unsized_operator(t, dim % t.ndim, group)
        return unsized
    t, dim, agreed = agree("all_gather_variable_dim", t, dim, sizes, group=group)
    return gather_rows(t, dim, agreed, group), agreed, rows_of(rank, agreed)


def all_gather_variable_dim(
    t: Tensor, dim: int = 0, sizes: Sizes | None = None, *, group: Group = None
) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` and the sizes as a LongTensor `(world,)`; carries no gradient.

    >>> all_gather_variable_dim(torch.ones(3, 2), dim=1)[1]
    tensor([2])
    """
    gathered, found, _ = gather_with_rows(t, dim, sizes, group=group)
    return gathered, sizes_tensor(found, t.device)


def all_gather_same_dim(t: Tensor, *, group: Group = None) -> list[Tensor]:
    """Every rank's tensor, all of one shape (0-d too), as a list in rank order; carries no gradient.

    >>> all_gather_same_dim(torch.tensor(7.0))
    [tensor(7.)]
    """
    _, world = rank_and_world(group)
    t, _, _ = agree("all_gather_same_dim", t, None, None, group=group)
    stacked = gather_rows(t.unsqueeze(0), 0, [1] * world, group)
    return [part.clone() for part in stacked]  # a view would keep, and save, all of them


def gather_sizes(t: Tensor, *, dim: int, group: Group = None) -> Tensor:
    """Every rank's size along `dim`: LongTensor `(world,)`. The ranks may differ in all else.

    >>> gather_sizes(torch.ones(3, 2), dim=0)
    tensor([3])
    """
    rank_and_world(group)  # torch's own error where there is no group
    return sizes_tensor(agree_on_sizes(t, dim, group), t.device)


def split_by_rank(x: Tensor | tuple[Tensor, ...], *, group: Group = None) -> tuple[Tensor, Tensor]:
    """This rank's part of `x`, and every part's length as a LongTensor.

    (t_0, …, t_W-1)  ->  t_r, each t's `shape[0]`
    (W, n, …)        ->  x[r], n for every rank

    >>> split_by_rank((torch.ones(3, 2),))[1]
    tensor([3])
    """
    part = x[rank_and_world(group)[0]]
    sizes = [t.shape[0] for t in x] if isinstance(x, tuple) else [x.shape[1]] * x.shape[0]
    return part, sizes_tensor(sizes, part.device)


def pad_dim_to(t: Tensor, length: int, dim: int = 0) -> Tensor:
    """Pad with zeros, or crop, at the end of `dim`: `(… n …) -> (… length …)`.

    >>> pad_dim_to(torch.ones(2), 3)
    tensor([1., 1., 0.])
    """
    trailing = -dim - 1 if dim < 0 else t.ndim - dim - 1
    return functional.pad(t, (0, 0) * trailing + (0, length - t.shape[dim]))


def has_only_one_value(t: Tensor) -> Tensor:
    """Whether all elements equal the first: a 0-d bool tensor.

    >>> has_only_one_value(torch.tensor([4, 4, 5]))
    tensor(False)
    """
    return (t == t[0]).all()


def warn_if_stale(what: str, remedy: str, *, frames_up: int = 2) -> bool:
    """Warn where a remembered "not distributed" no longer holds; whether it did.

    The line that the warning points at is so many frames above this one.

    Never while compiling: a warning breaks a full graph.

    >>> warn_if_stale("this module was built", "Build it later.")  # not distributed: nothing is stale
    False
    """
    if is_compiling() or not is_distributed():
        return False
    warnings.warn(
        f"{what} before the process group came up, so nothing is gathered. {remedy}",
        StaleAnswerWarning,
        stacklevel=1 + frames_up,
    )
    return True


# ------------------------------------------------------------------ under torch.compile


def _gather_unsized(t: Tensor, dim: int, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    gathered, sizes, rows = gather_with_rows(t, dim, group=group)
    return gathered, torch.tensor(sizes), torch.arange(gathered.shape[dim])[rows]


def _shape_of_unsized(t: Tensor, dim: int, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    total = torch.library.get_ctx().new_dynamic_size()
    sizes, rows = (torch.empty(n, dtype=torch.long) for n in (rank_and_world(group)[1], t.shape[dim]))
    return empty_like(t, dim, total), sizes, rows


_gather_unsized_operator = opaque(
    "gather_unsized",
    "(Tensor t, int dim, str group) -> (Tensor, Tensor, Tensor)",
    _gather_unsized,
    _shape_of_unsized,
    ordered=False,  # inductor loses the new size of an ordered operator's result (torch 2.13)
)
