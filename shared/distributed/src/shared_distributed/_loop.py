# SPDX-License-Identifier: MIT
"""A loop that every rank leaves at the same step, however many batches it has.

Before each step every rank says which loop it is in and what it has: another batch, none, or an error. That is one sum
of a few integers over the ranks (`_channel`). All ranks read the same answer, so all of them decide the same.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any, Generic, TypeVar

import torch.distributed as dist

from ._channel import Channel, Says, Word, channel_of
from ._cut import cut_to_no_rows
from ._errors import BadInputError
from ._gather import group_of, is_distributed
from ._loaders import mark_of_rows, refuse_repeated_rows, warn_of_same_rows

T = TypeVar("T")


class until_all_done(Generic[T]):
    """This rank's batches, then batches of 0 rows, until every rank is done. If a loader raises, every rank raises.

    Iterate it as you would iterate `loader`, once per epoch. Its attributes (`dataset`, `sampler`, `set_epoch`, …) are
    the loader's. `len()` is the number of steps that all ranks take, and a TypeError if the loader of any rank has no
    length. Before the first loop, `len()` asks the other ranks: it waits until they call `len()` or begin the loop.

    `empty` makes a batch of 0 rows. By default the first batch is cut to 0 rows: its tensors, arrays and lists of
    strings; single numbers and strings stay as they are. A rank that never has a batch needs `empty`, and so do batches
    of other objects.

    All ranks leave the loop at the same step. If a rank leaves before the others (`break`, `return`, an exception), the
    others get an error at their next step that names it. Each step costs a sum of a few integers per rank, over gloo.

    >>> loop = until_all_done([torch.ones(3, 2), torch.ones(1, 2)])
    >>> [len(batch) for batch in loop], len(loop)
    ([3, 1], 2)
    """

    def __init__(self, loader: Iterable[T], *, empty: Callable[[], T] | None = None, group: Any = None) -> None:
        self.loader = loader
        self.empty = empty
        self.group = group
        self._begun = 0  # the number of the loop that len() has begun and nobody has iterated yet
        self._steps: int | None = None  # of the last loop that was begun; -1 where they are not known

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in vars(self):  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __bool__(self) -> bool:
        return True  # not by its length, for which this rank would have to ask the others

    def __len__(self) -> int:
        group = group_of(self.group)
        if not _has_others(group):
            return len(self.loader)
        if self._steps is None:
            self._begun = self._begin(channel_of(group), group)
        if self._steps is None or self._steps == -1:
            raise TypeError("the number of steps is not known: on some rank the loader has no length")
        return self._steps

    def __iter__(self) -> Iterator[T]:
        group = group_of(self.group)
        if not _has_others(group):
            yield from self.loader
            return
        channel = channel_of(group)
        outer = channel.current
        loop = self._begun or self._begin(channel, group)
        self._begun = 0
        for step, (says, batch) in enumerate(self._own_steps()):
            mark = mark_of_rows(self.loader, batch) if step == 0 else 0
            try:
                words = channel.tell(group, Word(loop, says, rows=mark))
            except BadInputError as error:
                raise error from (batch if isinstance(batch, Exception) else None)
            warn_of_same_rows([word.rows for word in words])
            if not any(word.says == Says.HAS_BATCH for word in words):
                channel.current = outer
                return
            channel.current = loop
            try:
                yield batch
            except GeneratorExit:  # the caller has left the loop now, or left it before and lets go of it now
                if channel.current == loop:
                    channel.leave(loop)
                    channel.current = outer
                raise

    def _begin(self, channel: Channel, group: Any) -> int:
        """Begin a loop together with the other ranks; its number."""
        words = channel.tell(group, Word(channel.started + 1, Says.BEGINS, _length_of(self.loader)))
        lengths = [word.length for word in words]
        self._steps = -1 if -1 in lengths else max(lengths)
        return channel.started

    def _own_steps(self) -> Iterator[tuple[Says, Any]]:
        """What this rank says at each step, without end, with its batch or with the error that was raised."""
        says = Says.RAISED
        no_rows: Any = TypeError("there was no batch that could be cut to 0 rows")
        try:
            refuse_repeated_rows(self.loader)
            for i, batch in enumerate(self.loader):
                if i == 0 and self.empty is None:  # now, since the caller may change the batch
                    no_rows = _cut_or_error(batch)
                yield Says.HAS_BATCH, batch
            if self.empty is None and isinstance(no_rows, Exception):
                says = Says.CANNOT_CUT
                raise no_rows
            while True:
                if self.empty is None:
                    yield Says.IS_DONE, deepcopy(no_rows)
                else:
                    yield Says.IS_DONE, self.empty()
        except Exception as error:  # every rank is told, and raises
            while True:
                yield says, error


def _cut_or_error(batch: Any) -> Any:
    """The batch cut to 0 rows, or why it cannot be cut: an error only if this rank needs it."""
    try:
        return cut_to_no_rows(batch)
    except Exception as error:
        return error


def _has_others(group: Any) -> bool:
    """Whether there are other ranks. Raises where there should be, and the process group is not made yet."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not (dist.is_available() and dist.is_initialized()):
        text = f"WORLD_SIZE says that there are {world} ranks, but there is no process group yet"
        raise BadInputError(f"{text}: call torch.distributed.init_process_group() before until_all_done's loop")
    return is_distributed(group)


def _length_of(loader: Any) -> int:
    """How many batches a loader says it has; -1 if it does not."""
    try:
        return len(loader)
    except Exception:  # loaders say so in many ways: TypeError, NotImplementedError, …
        return -1
