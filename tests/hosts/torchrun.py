# SPDX-License-Identifier: MIT
"""A world that torchrun launches, one agent a host, with c10d rendezvous; its ranks serve the same requests."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, ClassVar

from tests.support.hosts import host_by_rank
from tests.support.world import World, WorldFailure

from .network import Host

_PR_SET_PDEATHSIG = 1
START = 120.0  # seconds for agents and ranks to come up and find each other
_ports = count(29400)  # one a world: connections of the last one may linger


def _end_with_parent() -> None:
    """An agent whose parent is killed would wait minutes for the other agents."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Launched:
    """A rank that somebody else started, with what a world asks of a process."""

    exitcode: int | None = None  # known to its agent alone

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.sentinel = os.pidfd_open(pid)

    def join(self, timeout: float | None = None) -> None:
        wait([self.sentinel], timeout)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class TorchrunWorld(World):
    """`size` ranks on the hosts, in blocks."""

    hosts: ClassVar[list[Host]] = []

    def _start(self) -> None:
        self._agents: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.mkdtemp(prefix="world-")
        with socket.socket(socket.AF_UNIX) as listening:  # a path in the file system, which all hosts share
            listening.bind(f"{self._folder}/parent")
            listening.listen(self.size)
            listening.settimeout(START)
            self._launch()
            try:
                arrived = dict(self._accept(listening) for _ in range(self.size))
            except TimeoutError:
                logs = {n: Path(f"{self._folder}/agent-{n}.log").read_text() for n in range(len(self._agents))}
                self.close()
                raise WorldFailure(f"torchrun: not all of {self.size} ranks came up (logs by host)", logs, {}) from None
        self.processes = [arrived[rank][0] for rank in range(self.size)]
        self._pipes = [arrived[rank][1] for rank in range(self.size)]

    def _launch(self) -> None:
        shares = Counter(host_by_rank(self.size, len(self.hosts)))
        port = next(_ports)
        for number, ranks in sorted(shares.items()):
            host = self.hosts[number]
            words = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(shares)}"]
            words += [f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", f"--rdzv-id={port}", "--max-restarts=0"]
            words += [f"--rdzv-endpoint={self.hosts[0].address}:{port}", f"--rdzv-conf=is_host={int(number == 0)}"]
            words += [f"--local-addr={host.address}", "-m", "tests.hosts.serve"]
            words += [self._folder, str(self.deadlines.collective)]
            with Path(f"{self._folder}/agent-{number}.log").open("w") as log:
                agent = subprocess.Popen(host.command(*words), stdout=log, stderr=log, preexec_fn=_end_with_parent)
            self._agents.append(agent)

    def _accept(self, listening: socket.socket) -> tuple[int, tuple[Any, Connection]]:
        connected, _ = listening.accept()
        pipe = Connection(connected.detach())
        rank, pid = pipe.recv()
        return rank, (Launched(pid), pipe)

    def close(self) -> None:
        folder, self._folder = self._folder, ""  # the base class would delete it while agents write there
        processes = list(self.processes)
        super().close()
        for process in processes:
            os.close(process.sentinel)
        for agent in getattr(self, "_agents", []):
            agent.kill()
            agent.wait()
        self._agents = []
        shutil.rmtree(folder, ignore_errors=True)
