# SPDX-License-Identifier: MIT
"""A loop that every rank leaves at the same step, however many batches it has."""

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from ._errors import BadInputError
from ._faults import failures_named
from ._gather import group_of, is_distributed

_BATCH, _DONE, _NO_EMPTY, _RAISED = range(4)  # what a rank says of a step
_gloo_groups = WeakKeyDictionary[Any, Any]()  # by the group whose ranks they have


def until_all_done(loader: Iterable[Any], *, empty: Any = None, group: Any = None) -> Iterator[Any]:
    """This rank's batches, then batches of 0 rows, until every rank is done. If any loader raises, every rank raises.

    `empty` makes a batch of 0 rows. By default each tensor of the last real batch is cut to `[:0]`; a rank without any
    batch needs `empty`, and so do batches that hold 0-d tensors or other objects. Each step costs one sum of an integer
    a rank, over gloo, which runs while the batch before is used; one batch is fetched ahead.

    >>> [len(batch) for batch in until_all_done([torch.ones(3, 2), torch.ones(1, 2)])]
    [3, 1]
    """
    if not is_distributed(group := group_of(group)):
        yield from loader
        return
    rank, world, gloo, agreed = dist.get_rank(group), dist.get_world_size(group), _gloo_of(group), list[Any]()
    for state, batch in _steps(loader, empty):
        states = torch.zeros(world, dtype=torch.long, device="cpu")
        states[rank] = state
        with failures_named("sum of flags in until_all_done", group):
            told = gloo.allreduce([states])
        yield from agreed
        with failures_named("sum of flags in until_all_done", group):
            told.wait()
        by_rank = states.tolist()
        stuck = [r for r, s in enumerate(by_rank) if s == _RAISED or (s == _NO_EMPTY and _BATCH in by_rank)]
        if stuck:
            text = f"ranks {stuck} of {world}: the loader raised, or needs empty= to go on with batches of 0 rows"
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


def _gloo_of(group: Any) -> Any:
    """The group itself where it has gloo, else its ranks on gloo: on NCCL, reading a flag waits for the whole step.

    The ranks meet in the group's own store. `dist.new_group` would have them meet under a name that depends on how many
    groups each is in.
    """
    group = group or dist.group.WORLD
    if "cpu:gloo" in str(dist.get_backend_config(group)):
        return group
    if group not in _gloo_groups:
        store = dist.PrefixStore("until_all_done", dist.distributed_c10d._world.pg_map[group][1])
        place = dist.get_rank(group), dist.get_world_size(group)
        _gloo_groups[group] = dist.ProcessGroupGloo(store, *place, timeout=timedelta(minutes=30))
    return _gloo_groups[group]
