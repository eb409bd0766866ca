# SPDX-License-Identifier: MIT
"""Ranks as processes: asked over a pipe each, and ended by their own id. A crash or a hang of one is an answer too."""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

# a server that has imported torch once forks a rank in milliseconds, where a new interpreter takes seconds
_context = multiprocessing.get_context("forkserver")

_MEMORY = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS}  # which one depends on what was overwritten
CRASHED, HUNG = "crashed (SIGABRT or SIGSEGV)", "hung"


_Own = TypeVar("_Own", bound="Processes")


class Place(NamedTuple):
    """Where a rank stands, and what it needs to join the others."""

    rank: int
    size: int
    folder: str

    def join(self) -> None:
        """Enter the process group."""
        if sys.platform == "linux":  # elsewhere it has another name
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.FileStore(str(Path(self.folder) / "store"), self.size)
        long = timedelta(minutes=10)  # a rank that waits is found, and ended, by the parent
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=long)


class Processes:
    """`size` ranks, each in `serve(place, requests, *arguments)` until that returns, in a `with` block."""

    def __init__(self, size: int, preload: Sequence[str], serve: Callable[..., None], *arguments: object) -> None:
        _context.set_forkserver_preload(list(preload))  # by the first in a process; what is not there is passed over
        self.size = size
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []
        for rank in range(size):
            ours, theirs = _context.Pipe()
            place = Place(rank, size, self._folder.name)
            process = _context.Process(target=_run, args=(serve, place, theirs, *arguments), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> None:
        """End every rank; nothing in one is worth an orderly end."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(10)
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()

    def send(self, request: object) -> None:
        """Ask every rank."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # it died since: its end is seen with the answers
                pipe.send(request)

    def answers(self, silence: float, grace: float) -> tuple[tuple[Any, ...], str]:
        """One answer a rank, None where there is none, and in words why there is none.

        silence, grace: how long to wait for a first answer, and then for the others; in seconds.
        """
        answers: dict[int, Any] = {}
        broken = ""
        deadline = time.monotonic() + silence
        while len(answers) < self.size and not broken:
            waiting = [rank for rank in range(self.size) if rank not in answers]
            ready = wait([self._pipes[rank] for rank in waiting], max(0.0, deadline - time.monotonic()))
            if not ready:
                broken = HUNG
            for rank in [rank for rank in waiting if self._pipes[rank] in ready]:
                try:
                    answers[rank] = self._pipes[rank].recv()
                except (EOFError, OSError):
                    broken = self._end_of(rank)
            if answers:
                deadline = min(deadline, time.monotonic() + grace)
        return tuple(answers.get(rank) for rank in range(self.size)), broken

    def printed(self) -> str:
        """What the ranks wrote to their outputs, the last of it."""
        logs = [path.read_text(errors="replace")[-2000:] for path in sorted(Path(self._folder.name).glob("*.log"))]
        return "\n".join(filter(None, logs))

    def _end_of(self, rank: int) -> str:
        self._processes[rank].join(5)
        code = self._processes[rank].exitcode
        if code is None or code >= 0:
            return f"left with exit code {code}"
        number = signal.Signals(-code)
        return CRASHED if number in _MEMORY else f"was killed by {number.name}"


# ------------------------------------------------------------------ in the processes


def _run(serve: Callable[..., None], place: Place, requests: Connection, *arguments: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which then ends the ranks
    threading.Thread(target=_end_with_parent, daemon=True).start()
    log = os.open(Path(place.folder) / f"rank{place.rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)  # what a rank prints is not part of a report
    os.dup2(log, 2)
    torch.set_num_threads(1)
    serve(place, requests, *arguments)
    os._exit(0)  # no destructors: peers may be gone, and gloo would wait for them


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
