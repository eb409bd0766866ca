# SPDX-License-Identifier: MIT
"""The ranks as processes. Whatever happens in them, a crash or a hang, becomes an outcome here."""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..errors import ToolError
from .cases import Case
from .loading import Description, Subject, describe, load
from .seen import Outcome
from .worker import Actor, in_names

# a server that has imported torch once forks a rank in milliseconds, where a new interpreter takes seconds; what is
# not there is passed over, and a user's code is never among it
_context = multiprocessing.get_context("forkserver")
PRELOADED = (__name__, "einops", "torch.fx.experimental.symbolic_shapes")  # the last is what a first backward imports

_MEMORY = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS}  # which one depends on what was overwritten
CRASHED, HUNG = "crashed (SIGABRT or SIGSEGV)", "hung"


class Deadlines(NamedTuple):
    """Seconds. `grace`: how long the others may go on once a first rank is done."""

    start: float = 120.0
    silence: float = 30.0
    grace: float = 5.0


class NotLoadedError(ToolError):
    """A subject could not be loaded in a process of its own."""

    def __init__(self, problem: str, *, for_an_import: bool = False) -> None:
        super().__init__(problem)
        self.for_an_import = for_an_import


class Ranks:
    """`size` processes, each with the subject loaded; in a process group unless a case is to make it."""

    def __init__(self, subject: Subject, size: int, *, joined: bool, deadlines: Deadlines) -> None:
        _context.set_forkserver_preload(list(PRELOADED))
        self.size, self._deadlines = size, deadlines
        self._folder = tempfile.TemporaryDirectory(prefix="parity-")
        self._processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []
        for rank in range(size):
            ours, theirs = _context.Pipe()
            place = _Place(rank, size, self._folder.name)
            process = _context.Process(target=_serve, args=(subject, place, joined, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        try:
            self.description = self._started()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def ask(self, case: Case) -> Outcome:
        """What the ranks see of a case. Ranks that crashed or hung are not to be asked again."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # it died since: its end is seen below
                pipe.send(case)
        return Outcome(*self._collect(self._deadlines.silence, self._deadlines.grace))

    def end(self) -> None:
        """End every rank, by its own id; nothing in a rank is worth an orderly end."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(10)
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()

    def _started(self) -> Description:
        answers, broken = self._collect(self._deadlines.start, self._deadlines.start)
        for answer in answers:
            if isinstance(answer, _Failure):
                raise NotLoadedError(answer.text, for_an_import=answer.for_an_import)
        if broken:
            raise NotLoadedError(f"the process {broken}")
        description: Description = answers[0]
        return description

    def _collect(self, silence: float, grace: float) -> tuple[tuple[Any, ...], str]:
        """One answer a rank, None where there is none, and in words why there is none."""
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

    def _end_of(self, rank: int) -> str:
        self._processes[rank].join(5)
        code = self._processes[rank].exitcode
        if code is None or code >= 0:
            return f"left with exit code {code}"
        number = signal.Signals(-code)
        return CRASHED if number in _MEMORY else f"was killed by {number.name}"


# ------------------------------------------------------------------ in the processes


class _Place(NamedTuple):
    """Where a rank stands, and what it needs to join the others."""

    rank: int
    size: int
    folder: str

    def join(self) -> None:
        """Enter the process group."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.FileStore(str(Path(self.folder) / "store"), self.size)
        long = timedelta(minutes=10)  # a rank that waits is found, and ended, by the parent
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=long)


class _Failure(NamedTuple):
    """What loading raised."""

    text: str
    for_an_import: bool


def _serve(subject: Subject, place: _Place, joined: bool, requests: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which then ends the ranks
    threading.Thread(target=_end_with_parent, daemon=True).start()
    file = os.open(Path(place.folder) / f"rank{place.rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)  # what the user's code prints is not part of the report
    os.dup2(file, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        loaded = load(subject)
        if joined:
            place.join()
        requests.send(describe(loaded))
    except BaseException as error:
        (name, *_), message = in_names(error)
        requests.send(_Failure(f"{name}: {message}", isinstance(error, ImportError)))
        os._exit(1)
    actor = Actor(loaded, place.rank, place.join)
    while True:
        try:
            case = requests.recv()
        except EOFError:
            os._exit(0)  # no destructors: peers may be gone, and gloo would wait for them
        requests.send(actor.play(case))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
