# SPDX-License-Identifier: MIT
"""The parent's side: a world of processes, what it is asked, and how it fails."""

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, NamedTuple, NoReturn, TypeVar

from .rank import Place, RankError, dumps, enter, log_of, serve

# a server that has imported torch once forks a rank in milliseconds, where a new interpreter takes seconds
_context = multiprocessing.get_context("forkserver")
_START = 120.0  # seconds for a world to come up, on a machine that is busy with something else
_STACKS = 1.0  # seconds for stuck ranks to write their stacks
_MEMORY = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS}  # which one depends on what was overwritten
CRASHED, HUNG = "crashed (SIGABRT or SIGSEGV)", "hung"
_World = TypeVar("_World", bound="World")


def preload(*modules: str) -> None:
    """Have the server of this process import these once. For the first world: later it has no effect."""
    _context.set_forkserver_preload([*modules, "torch.distributed", __name__])


def start_server() -> None:
    """Start the server of this process, unless it runs. Done early, it imports while this process does other work."""
    if sys.platform == "linux":  # elsewhere the loopback has another name
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # no CUDA before the fork: it does not survive one
    forkserver.ensure_running()


class Deadlines(NamedTuple):
    """Seconds, the first inside the second."""

    collective: float = 40.0
    case: float = 60.0
    after_error: float = 10.0  # for the other ranks, once a first one has raised
    after_first: float = float("inf")  # for the other ranks, once a first one is done


class WorldFailure(AssertionError):
    """At least one rank failed: every rank's traceback, stack or end, in one text.

    by_rank: those texts
    answers: what the ranks answered that did
    end:     how the ranks without an answer ended, in words; empty where all answered
    """

    def __init__(self, headline: str, by_rank: dict[int, str], answers: dict[int, Any], end: str = "") -> None:
        blocks = [f"--- rank {rank} ---\n{text.strip()}" for rank, text in sorted(by_rank.items())]
        super().__init__("\n".join([headline, *blocks]))
        self.by_rank, self.answers, self.end = by_rank, answers, end


class World:
    """`size` processes in one process group, or with `join=False` in none yet; started when first asked.

    prepare: an importable function, run in every rank before it joins.
    """

    def __init__(
        self,
        size: int,
        backend: str = "gloo",
        *,
        join: bool = True,
        deadlines: Deadlines | None = None,
        prepare: Callable[[], object] | None = None,
    ) -> None:
        self.size, self.backend, self.join, self.prepare = size, backend, join, prepare
        self.deadlines = deadlines or Deadlines()
        self.processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []
        self._folder = ""  # of the store and the logs

    def __enter__(self: _World) -> _World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Every rank's result of `function(*args)`, by rank; WorldFailure if any rank failed."""
        return self._checked(function.__qualname__, self.try_run(function, *args))

    def try_run(self, function: Callable[..., Any], *args: Any, lost: Collection[int] = ()) -> list[Any]:
        """As `run`, with a RankError in place of a result where a rank raised, and None for ranks that are `lost`."""
        if not self.processes:
            self._start()
        return self._ask(function, args, self.deadlines, lost)

    def close(self) -> None:
        """Kill the ranks: they have nothing to clean up, and may be waiting for each other."""
        for process in self.processes:
            process.kill()
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.processes, self._pipes = [], []

    def _start(self) -> None:
        start_server()
        self._folder = tempfile.mkdtemp(prefix="world-")
        for rank in range(self.size):
            where = Place(rank, self.size, self.backend, self._folder, self.deadlines.collective)
            ours, theirs = _context.Pipe()
            process = _context.Process(target=serve, args=(where, theirs), daemon=True, name=f"rank {rank}")
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(ours)
        self._checked("start", self._ask(enter, (self.prepare, self.join), Deadlines(case=_START)))

    def _checked(self, what: str, answers: list[Any]) -> list[Any]:
        failed = [rank for rank, answer in enumerate(answers) if isinstance(answer, RankError)]
        if failed:  # ranks may be out of step: the next case gets a new world
            self._fail(f"{what} failed on ranks {failed} of {self.size}", dict(enumerate(answers)))
        return answers

    def _ask(
        self, function: Callable[..., Any], args: tuple[Any, ...], deadlines: Deadlines, lost: Collection[int] = ()
    ) -> list[Any]:
        """One answer a rank. A dead rank, or one past its deadline, ends the world, unless it was to be lost."""
        what, request = function.__qualname__, dumps((function, args))
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # a dead rank: its pipe says so below
                pipe.send_bytes(request)
        answers: dict[int, Any] = dict.fromkeys(lost)
        give_up = time.monotonic() + deadlines.case
        while len(answers) < self.size:
            pending: dict[Any, int] = {self._pipes[rank]: rank for rank in range(self.size) if rank not in answers}
            ready = wait([*pending], timeout=max(0.0, give_up - time.monotonic()))
            if not ready:
                for rank in pending.values():
                    os.kill(self.processes[rank].pid or 0, signal.SIGUSR1)
                time.sleep(_STACKS)
                self._fail(f"{what}: no answer from ranks {[*pending.values()]} of {self.size}", answers, HUNG)
            dead: dict[int, int | None] = {}
            for rank in [pending[pipe] for pipe in ready]:
                try:
                    answer = answers[rank] = pickle.loads(self._pipes[rank].recv_bytes())
                except (EOFError, OSError):  # its process has ended
                    self.processes[rank].join(1)
                    dead[rank] = self.processes[rank].exitcode
                    continue
                patience = deadlines.after_error if isinstance(answer, RankError) else deadlines.after_first
                give_up = min(give_up, time.monotonic() + patience)
            if dead:
                headline = f"{what}: worker died on ranks {dead} of {self.size} (rank: exit code)"
                self._fail(headline, answers, _end_in_words(dead[min(dead)]))
        return [answers[rank] for rank in range(self.size)]

    def _fail(self, headline: str, answers: dict[int, Any], end: str = "") -> NoReturn:
        by_rank = {rank: answer.traceback for rank, answer in answers.items() if isinstance(answer, RankError)}
        for rank in [rank for rank in range(self.size) if rank not in answers]:
            log = log_of(rank, self._folder)
            by_rank[rank] = (log.read_text(errors="replace") if log.exists() else "") or "(printed nothing)"
        self.close()
        raise WorldFailure(headline, by_rank, answers, end)


def _end_in_words(code: int | None) -> str:
    if code is None or code >= 0:
        return f"left with exit code {code}"
    number = signal.Signals(-code)
    return CRASHED if number in _MEMORY else f"was killed by {number.name}"
