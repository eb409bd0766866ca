# SPDX-License-Identifier: MIT
"""The ranks as processes: one set a world size, started once, asked point by point."""

import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from .cases import Mode, Point
from .measure import Timing, measure

# a server that has imported torch once forks a rank in milliseconds, where a new interpreter takes seconds
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [f"{__package__}.measure", "torchmetrics.utilities.distributed", "accelerate.utils.operations"]
)  # what is not installed is passed over
_PATIENCE = 600.0  # seconds for one point; the longest takes a tenth of it
_COLLECTIVE = timedelta(seconds=300)


class RankFailedError(RuntimeError):
    """A rank raised, died or did not answer; the message carries what it wrote."""


class World:
    """`size` ranks over gloo, each with one thread, in a `with` block."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> "World":
        for rank in range(self.size):
            ours, theirs = _context.Pipe()
            log = str(Path(self._folder.name) / f"rank{rank}.log")
            store = str(Path(self._folder.name) / "store")
            process = _context.Process(target=_serve, args=(rank, self.size, store, log, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()  # by its own id; nothing in a rank is worth an orderly end
        for process in self._processes:
            process.join(10)
        self._folder.cleanup()

    def measure(self, point: Point, mode: Mode, budget: float) -> list[Timing]:
        """Run one point on all ranks; rank 0's account, as all ranks hold the same numbers."""
        for pipe in self._pipes:
            pipe.send((point, mode, budget))
        answers: dict[int, list[Timing]] = {}
        deadline = time.monotonic() + _PATIENCE
        while len(answers) < self.size:
            waiting = [rank for rank in range(self.size) if rank not in answers]
            ready = wait([self._pipes[rank] for rank in waiting], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail(f"ranks {waiting} of {self.size} did not answer at {point}, {mode}")
            for rank in [rank for rank in waiting if self._pipes[rank] in ready]:
                try:
                    answer = self._pipes[rank].recv()
                except EOFError:
                    self._fail(f"rank {rank} of {self.size} died at {point}, {mode}")
                if isinstance(answer, str):
                    self._fail(f"rank {rank} of {self.size} failed at {point}, {mode}\n{answer}")
                answers[rank] = answer
        return answers[0]

    def _fail(self, headline: str) -> None:
        logs = [path.read_text(errors="replace")[-2000:] for path in sorted(Path(self._folder.name).glob("*.log"))]
        raise RankFailedError("\n".join([headline, *filter(None, logs)]))


def _serve(rank: int, size: int, store: str, log: str, requests: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which then ends the ranks
    threading.Thread(target=_end_with_parent, daemon=True).start()
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", store=FileStore(store, size), rank=rank, world_size=size, timeout=_COLLECTIVE)
        while True:  # ends with the pipe
            requests.send(measure(*requests.recv()))
    except EOFError:
        pass
    except BaseException:
        requests.send(traceback.format_exc())
    os._exit(0)  # no destructors: peers may be gone, and gloo would wait for them


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
