# SPDX-License-Identifier: MIT
"""What the adapters share: gathers that carry no gradient, and small tools around them.

Unlike `all_gather` these ask for a process group: without one they raise torch's own error, and
alone in one they gather (a copy) all the same.
"""

import warnings

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from ._agreement import agree, agree_on_sizes
from ._errors import StaleAnswerWarning
from ._sizes import Sizes, sizes_tensor
from ._transport import gather_rows
from ._world import is_compiling, is_distributed, rank_and_world


def all_gather_variable_dim(
    t: Tensor, dim: int = 0, sizes: Sizes | None = None, *, group: ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """`(… n_r …) -> (… sum(n) …)` and the sizes as a LongTensor `(world,)`; carries no gradient."""
    rank_and_world(group)
    t, dim, agreed = agree("all_gather_variable_dim", t, dim, sizes, group=group)
    return gather_rows(t, dim, agreed, group), sizes_tensor(agreed, t.device)


def all_gather_same_dim(t: Tensor, *, group: ProcessGroup | None = None) -> list[Tensor]:
    """Every rank's tensor, all of one shape (0-d too), as a list in rank order; carries no gradient."""
    _, world = rank_and_world(group)
    t, _, _ = agree("all_gather_same_dim", t, None, None, group=group)
    stacked = gather_rows(t[None], 0, [1] * world, group)
    return [part.clone() for part in stacked]  # a view would keep, and save, all of them


def gather_sizes(t: Tensor, *, dim: int, group: ProcessGroup | None = None) -> Tensor:
    """Every rank's size along `dim`: LongTensor `(world,)`. The ranks may differ in all else."""
    rank_and_world(group)
    return sizes_tensor(agree_on_sizes(t, dim, group), t.device)


def split_by_rank(
    x: Tensor | tuple[Tensor, ...], *, group: ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """This rank's part of `x`, and every part's length as a LongTensor.

    (t_0, …, t_W-1)  ->  t_r, each t's `shape[0]`
    (W, n, …)        ->  x[r], n for every rank
    """
    part = x[rank_and_world(group)[0]]
    sizes = [t.shape[0] for t in x] if isinstance(x, tuple) else [x.shape[1]] * x.shape[0]
    return part, sizes_tensor(sizes, part.device)


def pad_dim_to(t: Tensor, length: int, dim: int = 0) -> Tensor:
    """Pad with zeros, or crop, at the end of `dim`: `(… n …) -> (… length …)`."""
    trailing = -dim - 1 if dim < 0 else t.ndim - dim - 1
    return functional.pad(t, (0, 0) * trailing + (0, length - t.shape[dim]))


def has_only_one_value(t: Tensor) -> Tensor:
    """Whether all elements equal the first: a 0-d bool tensor."""
    return (t == t[0]).all()


def warn_if_stale(what: str, remedy: str) -> bool:
    """Warn where a remembered "not distributed" no longer holds; whether it did.

    Never while compiling: a warning breaks a full graph.
    """
    if is_compiling() or not is_distributed():
        return False
    warnings.warn(
        f"{what} before the process group came up, so nothing is gathered. {remedy}",
        StaleAnswerWarning,
        stacklevel=3,
    )
    return True
