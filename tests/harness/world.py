# SPDX-License-Identifier: MIT
"""The parent's side: a world of worker processes, what it is asked, and how it fails."""

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

from .wire import dumps
from .worker import Place, main

# A server that has imported torch once forks a worker in milliseconds, where a new interpreter takes seconds. pytest
# too: each worker runs the parent's main module again.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch.distributed", "torch._dynamo", "shared_distributed", "pytest"])
_START = 120.0  # seconds for a world to come up, on a machine that is busy with something else


class Deadlines(NamedTuple):
    """Seconds, each inside the next. `grace`: how long others may go on after a first rank failed."""

    collective: float = 40.0
    case: float = 60.0
    kill: float = 70.0
    grace: float = 10.0


class RankError(NamedTuple):
    """What one rank raised."""

    type: str
    message: str
    traceback: str


class WorldFailure(AssertionError):
    """A case failed on at least one rank: every rank's traceback, stack or end, in one text."""

    def __init__(self, headline: str, by_rank: dict[int, str]) -> None:
        blocks = [f"--- rank {rank} ---\n{text.strip()}" for rank, text in sorted(by_rank.items())]
        super().__init__("\n".join([headline, *blocks]))
        self.by_rank = by_rank


class World:
    """`size` processes in one process group (or, with `join=False`, in none yet)."""

    def __init__(self, backend: str, size: int, *, join: bool = True, deadlines: Deadlines | None = None) -> None:
        self.backend, self.size, self.join = backend, size, join
        self.deadlines = deadlines or Deadlines()
        self.processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []
        self._folder: Path | None = None

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, function: Callable[..., Any] | str, *args: Any) -> list[Any]:
        """Every rank's result of `function(*args)`, by rank; WorldFailure if any rank failed.

        The function is sent by its name, so it has to stand at the top of a module; `"module:function"` still works.
        """
        answers = self.try_run(function, *args)
        failed = {rank: answer.traceback for rank, answer in enumerate(answers) if isinstance(answer, RankError)}
        if failed:
            self.kill()  # ranks may be out of step: the next case gets a new world
            raise WorldFailure(f"{_name(function)} failed on ranks {sorted(failed)} of {self.size}", failed)
        return answers

    def try_run(self, function: Callable[..., Any] | str, *args: Any, lost: Collection[int] = ()) -> list[Any]:
        """As `run`, with a RankError in place of a result where a rank raised, and None for ranks that are `lost`."""
        if not self.processes:
            self._start()
        request = dumps((function, args))
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # a dead worker: its sentinel says so below
                pipe.send_bytes(request)
        return self._collect(_name(function), self.deadlines, lost)

    def kill(self) -> None:
        """End every worker at once."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
        self.close()

    def close(self) -> None:
        """End the workers: they leave when their pipe closes, and are killed if they do not."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self.processes, self._pipes = [], []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # tests speak to loopback only
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # no CUDA before the fork: it does not survive one
        self._folder = Path(tempfile.mkdtemp(prefix="world-"))
        for rank in range(self.size):
            where = Place(rank, self.size, self.backend, str(self._folder / "store"), self.deadlines.collective)
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=main, args=(where, self.join, theirs, str(self._log(rank))), daemon=True, name=f"rank {rank}"
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(ours)
        answers = self._collect("joining the process group", Deadlines(_START, _START, _START + 10))
        failed = {rank: answer.traceback for rank, answer in enumerate(answers) if isinstance(answer, RankError)}
        if failed:
            self.kill()
            raise WorldFailure("joining the process group failed", failed)

    def _collect(self, what: str, deadlines: Deadlines, lost: Collection[int] = ()) -> list[Any]:
        """One answer a rank. A dead worker, or one past its deadline, ends the world, unless it was to be lost."""
        answers: dict[int, Any] = dict.fromkeys(lost)
        started = time.monotonic()
        ask_for_stacks = started + deadlines.case
        give_up = started + deadlines.kill
        asked = False
        while len(answers) < self.size:
            pending = [rank for rank in range(self.size) if rank not in answers]
            now = time.monotonic()
            if not asked and now >= ask_for_stacks:
                asked = True
                give_up = min(give_up, now + deadlines.kill - deadlines.case)
                for rank in pending:
                    os.kill(self._pid(rank), signal.SIGUSR1)
            if now >= give_up:
                self._fail(f"{what}: no answer from ranks {pending} of {self.size}", answers, pending)
            waiting = {self._pipes[rank]: rank for rank in pending}
            sentinels = {self.processes[rank].sentinel: rank for rank in pending}
            until = give_up if asked else ask_for_stacks
            ready = wait([*waiting, *sentinels], timeout=max(0.0, until - now))
            for source in ready:
                if source in waiting:
                    self._receive(waiting[source], answers)
            dead = [rank for source, rank in sentinels.items() if source in ready and rank not in answers]
            for rank in dead:
                self._receive(rank, answers)  # it may have answered just before it died
            dead = [rank for rank in dead if rank not in answers]
            if dead:
                codes = {rank: self._exit_code(rank) for rank in dead}
                self._fail(f"{what}: worker died on ranks {codes} of {self.size} (rank: exit code)", answers, pending)
            if any(isinstance(answer, RankError) for answer in answers.values()):
                ask_for_stacks = min(ask_for_stacks, time.monotonic() + deadlines.grace)
        return [answers[rank] for rank in range(self.size)]

    def _receive(self, rank: int, answers: dict[int, Any]) -> None:
        try:
            if self._pipes[rank].poll():
                status, value = pickle.loads(self._pipes[rank].recv_bytes())
                answers[rank] = value if status == "ok" else RankError(*value)
        except (EOFError, OSError):
            pass  # closed by a dying worker

    def _fail(self, headline: str, answers: dict[int, Any], silent: list[int]) -> None:
        by_rank = {rank: a.traceback for rank, a in answers.items() if isinstance(a, RankError)}
        for rank in silent:
            if rank not in answers:
                log = self._log(rank).read_text(errors="replace") if self._log(rank).exists() else ""
                by_rank[rank] = log or "(printed nothing)"
        self.kill()
        raise WorldFailure(headline, by_rank)

    def _log(self, rank: int) -> Path:
        assert self._folder is not None
        return self._folder / f"rank-{rank}.log"

    def _pid(self, rank: int) -> int:
        pid = self.processes[rank].pid
        assert pid is not None
        return pid

    def _exit_code(self, rank: int) -> int | None:
        self.processes[rank].join(1)
        return self.processes[rank].exitcode


def _name(function: Callable[..., Any] | str) -> str:
    return function if isinstance(function, str) else function.__qualname__


class Worlds:
    """The worlds of a test run, made when first asked for and kept until the end."""

    def __init__(self) -> None:
        self._worlds: dict[tuple[str, int], World] = {}

    def get(self, backend: str, size: int) -> World:
        """The one world of this backend and size."""
        return self._worlds.setdefault((backend, size), World(backend, size))

    def close(self) -> None:
        """End them all."""
        for world in self._worlds.values():
            world.close()
        self._worlds.clear()
