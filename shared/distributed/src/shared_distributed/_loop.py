# SPDX-License-Identifier: MIT
"""A loop that every rank leaves at the same step, however many batches it has."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from ._errors import BadInputError
from ._gather import all_gather_async, group_of, is_distributed

_BATCH, _DONE, _NO_EMPTY, _RAISED = range(4)  # what a rank says of a step


def until_all_done(loader: Iterable[Any], *, empty: Any = None, group: Any = None) -> Iterator[Any]:
    """This rank's batches, then batches of 0 rows, until every rank is done. If any loader raises, every rank raises.

    `empty` makes a batch of 0 rows. By default each tensor of the last real batch is cut to `[:0]`; a rank without any
    batch needs `empty`, and so do batches that hold 0-d tensors or other objects. Each step costs one gather of an
    integer on the CPU, which runs while the batch before is used; one batch is fetched ahead. Give a subgroup the
    backend "cpu:gloo,cuda:nccl": on NCCL alone torch may hang here if its ranks are in different numbers of groups.

    >>> [len(batch) for batch in until_all_done([torch.ones(3, 2), torch.ones(1, 2)])]
    [3, 1]
    """
    if not is_distributed(group := group_of(group)):
        yield from loader
        return
    if "cpu:gloo" not in str(dist.get_backend_config(group)):
        group = _gloo_group(group or dist.group.WORLD)
    ones, agreed = (1,) * dist.get_world_size(group), list[Any]()
    for state, batch in _steps(loader, empty):
        told = all_gather_async(torch.tensor([state], device="cpu"), sizes=ones, grad="local", group=group)
        yield from agreed
        by_rank = told.wait()[0].tolist()
        stuck = [r for r, s in enumerate(by_rank) if s == _RAISED or (s == _NO_EMPTY and _BATCH in by_rank)]
        if stuck:
            text = f"ranks {stuck} of {len(ones)}: the loader raised, or needs empty= to go on with batches of 0 rows"
            raise BadInputError(text) from (batch if state > _DONE else None)
        if _BATCH not in by_rank:
            return
        agreed = [batch]


def _steps(loader: Iterable[Any], empty: Callable[[], Any] | None) -> Iterator[tuple[int, Any]]:
    """This rank's state at every step, without end, and its batch or what it raised."""
    state, batch = _RAISED, None
    try:
        for batch in loader:
            yield _BATCH, batch
        state = _NO_EMPTY
        batch = None if empty else tree_map(lambda t: t[:0].clone(), batch)
        while True:
            yield _DONE, empty() if empty else tree_map(torch.clone, batch)
    except Exception as error:  # raised on every rank
        while True:
            yield state, error


@cache
def _gloo_group(group: Any) -> Any:
    """The same ranks on gloo: on NCCL, reading a flag would wait for the whole step."""
    apart = {} if group is dist.group.WORLD else {"use_local_synchronization": True}  # torch 2.0 has none
    return dist.new_group(dist.get_process_group_ranks(group), backend="gloo", **apart)
