# SPDX-License-Identifier: MIT
"""What ranks say to each other in `until_all_done`: four integers per rank, which every rank then reads."""

import ctypes
from datetime import timedelta
from enum import IntEnum
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ._errors import BadInputError
from ._faults import failures_named

_channels = WeakKeyDictionary[Any, "Channel"]()  # by the group whose ranks they connect


class Says(IntEnum):
    """What a rank says of its next step."""

    BEGINS = 1
    HAS_BATCH = 2
    IS_DONE = 3
    CANNOT_CUT = 4
    RAISED = 5
    LEFT = 6


class Word(NamedTuple):
    """What one rank says; `length` when a loop begins, and `rows`, a number for what it reads, with the first batch."""

    loop: int
    says: int
    length: int = 0
    rows: int = 0


class Channel:
    """Sums over the ranks of a group, in a gloo group of their own.

    It is separate because a rank that has left the loop must not meet the collectives of the others' loop bodies. It is
    on gloo because on NCCL reading the answer would wait for all work on the GPU.
    """

    def __init__(self, group: Any) -> None:
        # the ranks meet in the group's store; `dist.new_group` has names that depend on how many groups a rank is in
        store = dist.PrefixStore("until_all_done", dist.distributed_c10d._world.pg_map[group][1])
        self.rank = dist.get_rank(group)
        world = dist.get_world_size(group)
        self.gloo = dist.ProcessGroupGloo(store, self.rank, world, timeout=_timeout_of(group))
        with torch.inference_mode(False):  # a tensor made in inference mode could not be written to outside of it
            self.table = torch.zeros(world, len(Word._fields), dtype=torch.long, device="cpu")
        self.started = 0  # loops so far, on every rank
        self.current = 0  # the loop that this rank is in; 0 outside of loops
        self._leaving: Any = None  # the sum that this rank started when it left a loop
        _never_free(self)

    def tell(self, group: Any, word: Word) -> list[Word]:
        """Every rank's word. Where these do not fit together every rank raises the same BadInputError."""
        if self._leaving is not None:
            leaving = self._leaving
            self._leaving = None
            self._answers(group, leaving)
        return self._answers(group, self._start(word))

    def leave(self, loop: int) -> None:
        """Say that this rank has left its loop, without waiting for the others: they may be anywhere."""
        if self._leaving is None:  # from two nested loops together, only the inner one is told
            self._leaving = self._start(Word(loop, Says.LEFT))

    def _start(self, word: Word) -> Any:
        self.table.zero_()
        self.table[self.rank] = torch.tensor(word)
        return self.gloo.allreduce([self.table])

    def _answers(self, group: Any, work: Any) -> list[Word]:
        with failures_named("sum of flags in until_all_done", group):
            work.wait()
        words = [Word(*numbers) for numbers in self.table.tolist()]
        self.started = max(self.started, *[word.loop for word in words])
        problem = problem_of(words)
        if problem:
            self.current = 0  # it is over on every rank, wherever its iterator still is
            raise BadInputError(problem)
        return words


def problem_of(words: list[Word]) -> str:
    """Why the ranks cannot take this step, in the same words on every rank; empty if they can."""
    world = len(words)
    newest = max(word.loop for word in words)
    behind = [rank for rank, word in enumerate(words) if word.loop != newest]
    having = _who_says(Says.HAS_BATCH, words)
    left = _who_says(Says.LEFT, words)
    raised = _who_says(Says.RAISED, words)
    uncut = _who_says(Says.CANNOT_CUT, words)
    if behind:
        ahead = [rank for rank, word in enumerate(words) if word.loop == newest]
        text = f"ranks {ahead} of {world} began another loop while ranks {behind} were still in the one before"
        return f"{text}. All ranks have to leave until_all_done's loop at the same step."
    if left and having:
        text = f"ranks {left} of {world} left until_all_done's loop early (break, return or an exception)"
        return f"{text}, while ranks {having} had another batch. All ranks have to leave it at the same step."
    if raised:
        return f"ranks {raised} of {world}: the loader raised, or empty= did"
    if uncut and having:
        text = f"ranks {uncut} of {world} need empty= to go on with batches of 0 rows"
        return f"{text}: they had no batch to cut, or one that cannot be cut"
    return ""


def _who_says(what: Says, words: list[Word]) -> list[int]:
    return [rank for rank, word in enumerate(words) if word.says == what]


def channel_of(group: Any) -> Channel:
    """The channel of a group, made at its first loop. Every rank of the group makes it then."""
    group = group or dist.group.WORLD
    if group not in _channels:
        _channels[group] = Channel(group)
    return _channels[group]


def _timeout_of(group: Any) -> timedelta:
    """The group's own where it is on gloo. On NCCL half an hour: one rank may save or evaluate between two steps."""
    if "cpu:gloo" in str(dist.get_backend_config(group)):
        options = getattr(group._get_backend(torch.device("cpu")), "options", None)
        return getattr(options, "_timeout", timedelta(minutes=30))
    return timedelta(minutes=30)


def _never_free(channel: Channel) -> None:
    """Keep the channel until the process ends.

    Freeing its gloo group waits for sums under way, so a rank that left early could not end. And a gloo thread that is
    the last to hold the table while the interpreter ends aborts the process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))
