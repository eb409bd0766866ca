# SPDX-License-Identifier: MIT
"""What the adapters share: gathers that carry no gradient, and small tools around them.

Unlike `all_gather` these ask for a process group: without one they raise torch's own error, and
alone in one they gather (a copy) all the same.
"""

import warnings

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from ._agreement import agree, agree_on_sizes
from ._compile import opaque
from ._errors import StaleAnswerWarning
from ._sizes import RowLayout, Sizes, sizes_tensor
from ._transport import gather_rows
from ._world import is_compiling, is_distributed, rank_and_world


def gather_with_layout(
    t: Tensor, dim: int = 0, sizes: Sizes | None = None, *, group: ProcessGroup | None = None
) -> tuple[Tensor, RowLayout]:
    """`(… n_r …) -> (… sum(n) …)` and which rows came from whom; carries no gradient.

    >>> gathered, layout = gather_with_layout(torch.ones(3, 2))
    >>> layout.rows
    slice(0, 3, None)
    """
    rank_and_world(group)  # torch's own error where there is no group
    if is_compiling() and sizes is None:
        gathered, found = _gather_unsized_operator(t, dim % t.ndim, group)
        return gathered, TracedLayout(found, t.shape[dim], group)
    t, dim, agreed = agree("all_gather_variable_dim", t, dim, sizes, group=group)
    return gather_rows(t, dim, agreed, group), RowLayout(agreed, group=group)


def all_gather_variable_dim(
    t: Tensor, dim: int = 0, sizes: Sizes | None = None, *, group: ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` and the sizes as a LongTensor `(world,)`; carries no gradient.

    >>> all_gather_variable_dim(torch.ones(3, 2), dim=1)[1]
    tensor([2])
    """
    gathered, layout = gather_with_layout(t, dim, sizes, group=group)
    return gathered, layout.sizes_tensor(t.device)


def all_gather_same_dim(t: Tensor, *, group: ProcessGroup | None = None) -> list[Tensor]:
    """Every rank's tensor, all of one shape (0-d too), as a list in rank order; carries no gradient.

    >>> all_gather_same_dim(torch.tensor(7.0))
    [tensor(7.)]
    """
    _, world = rank_and_world(group)
    t, _, _ = agree("all_gather_same_dim", t, None, None, group=group)
    stacked = gather_rows(t[None], 0, [1] * world, group)
    return [part.clone() for part in stacked]  # a view would keep, and save, all of them


def gather_sizes(t: Tensor, *, dim: int, group: ProcessGroup | None = None) -> Tensor:
    """Every rank's size along `dim`: LongTensor `(world,)`. The ranks may differ in all else.

    >>> gather_sizes(torch.ones(3, 2), dim=0)
    tensor([3])
    """
    rank_and_world(group)  # torch's own error where there is no group
    return sizes_tensor(agree_on_sizes(t, dim, group), t.device)


def split_by_rank(x: Tensor | tuple[Tensor, ...], *, group: ProcessGroup | None = None) -> tuple[Tensor, Tensor]:
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


def warn_if_stale(what: str, remedy: str) -> bool:
    """Warn where a remembered "not distributed" no longer holds; whether it did.

    Never while compiling: a warning breaks a full graph.

    >>> warn_if_stale("this module was built", "Build it later.")  # not distributed: nothing is stale
    False
    """
    if is_compiling() or not is_distributed():
        return False
    warnings.warn(
        f"{what} before the process group came up, so nothing is gathered. {remedy}",
        StaleAnswerWarning,
        stacklevel=3,
    )
    return True


# ------------------------------------------------------------------ under torch.compile


class TracedLayout(RowLayout):
    """A layout whose sizes only the running graph knows, as a tensor.

    Inside an autograd Function the compiler accepts no numbers read from a tensor, so that `own`
    must select its rows without knowing where they begin.
    """

    def __init__(self, sizes: Tensor, own_size: int, group: ProcessGroup | None) -> None:
        self._sizes, self._own_size = sizes, own_size
        self.rank, _ = rank_and_world(group)

    def own(self, gathered: Tensor, dim: int = 0) -> Tensor:
        """This rank's part of a gathered tensor, a copy."""
        rows = torch.arange(self._own_size) + self._sizes[: self.rank].sum()
        return gathered.index_select(dim, rows.to(gathered.device))

    def sizes_tensor(self, device: torch.device) -> Tensor:
        """The sizes as a LongTensor on `device`."""
        return self._sizes.to(device)


def _gather_unsized(t: Tensor, dim: int, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    gathered, layout = gather_with_layout(t, dim, group=group)
    return gathered, torch.tensor(layout.sizes)


def _shape_of_unsized(t: Tensor, dim: int, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    total = torch.library.get_ctx().new_dynamic_size()
    sizes = torch.empty(rank_and_world(group)[1], dtype=torch.long)
    return t.new_empty((*t.shape[:dim], total, *t.shape[dim + 1 :])), sizes


_gather_unsized_operator = opaque(
    "gather_unsized",
    "(Tensor t, int dim, str group) -> (Tensor, Tensor)",
    _gather_unsized,
    _shape_of_unsized,
    ordered=False,  # inductor loses the new size of an ordered operator's result (torch 2.13)
)
