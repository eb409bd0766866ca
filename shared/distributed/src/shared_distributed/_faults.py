# SPDX-License-Identifier: MIT
"""When a collective fails: which rank was doing what, as far as the others can still be asked.

A transport's own message has an address at best, never a rank. So every rank that fails leaves a report in the store,
reads those of the others, and says in its error which ranks left none.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor

from ._errors import TransportError

_PATIENCE = 2.0  # seconds for the others to fail too, and to report it
_STORE_DEADLINE = 3.0  # seconds more for a store that does not answer
_ADVICE = """\
Did every rank make this call, and this backward? A rank whose loader ended earlier did not: see until_all_done.
SHARED_DISTRIBUTED_CHECK=1 checks sizes that are given, too.
The process group cannot be used any more: end the processes and start again."""


class failures_named:
    """A collective that fails in here raises a TransportError that says in which operation, on which tensor."""

    def __init__(
        self, operation: str, group: Any, x: Tensor | None = None, dim: int = 0, sizes: Sequence[int] = ()
    ) -> None:
        self.operation = operation
        self.group = group
        self.x = x
        self.dim = dim
        self.sizes = sizes

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError):
            raise _transport_error(self.in_words(), self.group, error) from error

    def in_words(self) -> str:
        """Such as: gather of torch.float32 ((3, 0, 2), 4) along dim 0."""
        if self.x is None:
            return self.operation
        shape: list[Any] = list(self.x.shape)
        shape[self.dim] = tuple(self.sizes)
        return f"{self.operation} of {self.x.dtype} {tuple(shape)} along dim {self.dim}"


def _transport_error(operation: str, group: Any, error: RuntimeError) -> TransportError:
    """Which operation failed, on whom, and who has not reported."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    reports, problem = _exchange_reports(operation, rank, world, group or dist.group.WORLD)
    lines = [f"{operation} failed on rank {rank} of {world}: {str(error).strip()}"]
    for other, their_operation in sorted(reports.items()):
        if other != rank:
            lines.append(f"  rank {other} failed in: {their_operation}")
    silent = [other for other in range(world) if other not in reports]
    if problem:
        lines.append(f"The other ranks could not be asked: {problem}")
    elif silent:
        lines.append(f"No report from ranks {silent} within {_PATIENCE:g} seconds:")
        lines.append("they are dead, stopped, still waiting, or busy elsewhere.")
    return TransportError("\n".join([*lines, _ADVICE]))


_failures = WeakKeyDictionary[Any, int]()  # how many a group has had on this rank


def _exchange_reports(operation: str, rank: int, world: int, group: Any) -> tuple[dict[int, str], str]:
    """Every report of this failure, by rank, and what kept the store from answering."""
    reports = {rank: operation}
    problem = "the store did not answer; the process that holds it may be gone or stopped."
    members = dist.get_process_group_ranks(group)
    attempt = _failures[group] = _failures.get(group, 0) + 1
    # a report belongs to one group and one failure: later ones must not quote it
    key = f"shared_distributed/failed/{'.'.join(map(str, members))}/{_name_of(group)}/{attempt}"

    def ask() -> None:
        nonlocal problem
        try:
            from torch.distributed.distributed_c10d import _get_default_store

            store = _get_default_store()
            store.set(f"{key}/{store.add(key, 1)}", f"{rank} {operation}")
            read = 0
            end = time.monotonic() + _PATIENCE
            while len(reports) < world and time.monotonic() < end:
                time.sleep(0.05)
                count = store.add(key, 0)  # one question, however many ranks there are
                for number in range(read + 1, count + 1):
                    reporter, _, their_operation = store.get(f"{key}/{number}").decode().partition(" ")
                    reports[int(reporter)] = their_operation
                read = count
            problem = ""
        except (RuntimeError, OSError) as error:
            problem = f"the store is gone too ({str(error).splitlines()[0]})."

    # in a thread: a store whose host is stopped may take minutes to answer
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE + _STORE_DEADLINE)
    return dict(reports), problem


def _name_of(group: Any) -> str:
    try:
        return str(group.group_name)
    except (AttributeError, RuntimeError):  # a process group written in Python may have none
        return ""
