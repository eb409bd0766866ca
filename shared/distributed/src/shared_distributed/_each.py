# SPDX-License-Identifier: MIT
"""Every rank's tensor as it was, where ranks may differ in every size."""

from typing import Any

import torch
from torch import Tensor

from ._agree import _has_shape
from ._choose import ranks_for_headers, ranks_for_rows
from ._errors import BadInputError
from ._gather import Grad, group_of
from ._ranks import _graph_break, _is_distributed, _long_tensor
from ._together import agree_on_all, move_all
from ._usable import problem_with, refuse_tracing


def all_gather_each(x: Tensor, *, grad: Grad = "sum", group: Any = None) -> list[Tensor]:
    """Every rank's tensor in its own shape, in rank order; differentiable.

        (a_r, b_r, …) on rank r  ->  a list of (a_0, b_0, …), (a_1, b_1, …), … on every rank

    The ranks agree on the dtype and on the number of dimensions, 0 included, and may differ in every size. Each tensor
    has its own storage. Only real elements are sent, and small tensors come with their shapes, in one round.
    `torchmetrics.Metric(dist_sync_fn=all_gather_each)` takes it. Under torch.compile it is a graph break.

    Args:
        x: any dense tensor.
        grad: "sum" or "local", as in `all_gather`.
        group: the process group, a 1-d mesh, or a mesh and its dim.

    >>> all_gather_each(torch.ones(2))
    [tensor([1., 1.])]
    """
    parts: list[Tensor] = _gather_each(x, grad, group)
    return parts


@_graph_break
def _gather_each(x: Any, grad: str, group: Any) -> list[Tensor]:
    problem = "" if grad in ("sum", "local") else f"grad must be 'sum' or 'local', got {grad!r}"
    is_dense = _has_shape(x) and x.layout == torch.strided and not hasattr(x, "to_local")
    problem = problem or problem_with(x)  # before anything is done with it
    group = group_of(group)
    if not _is_distributed(group):
        if problem or not is_dense:
            raise BadInputError(problem or f"expected a dense torch.tensor, got {type(x)}")
        return [x]

    refuse_tracing()
    summed = grad == "sum"
    flat = x.reshape(-1) if is_dense and not problem else x
    operation = f"all_gather_each of {x.ndim} dims" if is_dense else "all_gather_each"
    ranks: Any = ranks_for_headers(group, [flat], 0)
    ranks.numbers = x.shape if is_dense else ()
    tensors, sizes = agree_on_all(ranks, operation, [flat], 0, None, summed, check=True, problem=problem)
    mover: Any = ranks_for_rows(ranks, x.device)
    shapes = ranks.everyones_numbers
    if x.ndim == 0:
        shapes = [[]] * ranks.world
    elif not shapes:  # too many for the header
        own_shape = _long_tensor(list(x.shape), x.device)
        shapes = mover.gather(own_shape, 0, [x.ndim] * ranks.world).view(-1, x.ndim).tolist()
    (gathered,) = move_all(mover, tensors, 0, sizes, summed)
    return [part.view(shape).clone() for part, shape in zip(gathered.split(sizes), shapes, strict=True)]
