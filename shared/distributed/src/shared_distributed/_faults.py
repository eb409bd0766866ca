# SPDX-License-Identifier: MIT
"""When a collective fails underneath: which rank was doing what, as far as the others can still be heard.

A transport's own message carries an address at best, never a rank. So every rank that fails leaves a note
in the process group's store, looks for the others' notes, and says in its error who left none.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ._errors import TransportError

_PATIENCE = 2.0  # seconds for the others to fail too, and say so
_STORE_DEADLINE = 3.0  # seconds more for a store that does not answer


class failures_named:
    """A collective that fails in here raises a TransportError that says in which operation."""

    def __init__(self, operation: Callable[[], str], group: Any) -> None:
        self.operation, self.group = operation, group

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError):
            raise _transport_error(self.operation(), self.group, error) from error


def _transport_error(operation: str, group: Any, error: RuntimeError) -> TransportError:
    """Which operation failed, on whom, and who has not reported."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    reports, store_problem = _exchange_reports(operation, rank, world, group)
    lines = [f"{operation} failed on rank {rank} of {world}: {str(error).strip()}"]
    lines += [f"  rank {r} failed in: {what}" for r, what in sorted(reports.items()) if r != rank]
    silent = [r for r in range(world) if r not in reports]
    if store_problem:
        lines.append(f"The other ranks could not be asked: {store_problem}")
    elif silent:
        who = f"No report from ranks {silent} within {_PATIENCE:g} seconds"
        lines.append(f"{who}: dead, stopped, still waiting, or busy elsewhere.")
    lines.append("Did every rank make this call, and this backward? SHARED_DISTRIBUTED_CHECK=1 checks given sizes too.")
    lines.append("The process group cannot be used any more: end the processes and start anew.")
    return TransportError("\n".join(lines))


def _exchange_reports(operation: str, rank: int, world: int, group: Any) -> tuple[dict[int, str], str]:
    """Every report there is, by rank, and what kept the store from answering."""
    reports = {rank: operation}
    problem = ["the store did not answer; the process that holds it may be gone or stopped."]
    everywhere = list(range(world)) if group is None else dist.get_process_group_ranks(group)

    def ask() -> None:
        try:
            from torch.distributed.distributed_c10d import _get_default_store

            store, key, read = _get_default_store(), "shared_distributed/failed", 0
            store.set(f"{key}/{store.add(key, 1)}", f"{everywhere[rank]} {operation}")
            end = time.monotonic() + _PATIENCE
            while len(reports) < world and time.monotonic() < end:
                time.sleep(0.05)
                count = store.add(key, 0)  # one question, however many ranks there are
                for number in range(read + 1, count + 1):
                    who, _, what = store.get(f"{key}/{number}").decode().partition(" ")
                    if int(who) in everywhere:
                        reports[everywhere.index(int(who))] = what
                read = count
            problem[0] = ""
        except (RuntimeError, OSError) as error:
            problem[0] = f"the store is gone too ({str(error).splitlines()[0]})."

    # in a thread, since a store whose host is stopped answers nothing, and may take minutes to say so
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE + _STORE_DEADLINE)
    return dict(reports), problem[0]
