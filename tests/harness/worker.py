# SPDX-License-Identifier: MIT
"""One rank: joins the process group, then runs the cases that its parent names."""

import faulthandler
import importlib
import os
import pickle
import signal
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .hosts import enter_host
from .wire import dumps


class Place(NamedTuple):
    """Where a rank stands, and what it needs to join the others."""

    rank: int
    size: int
    backend: str
    store: str
    collective_timeout: float


_place: Place | None = None


def join_group() -> None:
    """Enter the process group; done at the start, except in fresh worlds, whose cases do it when they like."""
    assert _place is not None
    if _place.backend == "nccl":
        torch.cuda.set_device(_place.rank)  # all ranks of a world are on this machine: a device each
    if _place.backend == "nccl-rules":
        from .nccl_rules import register  # here, since an old torch lacks what it needs

        register()
    dist.init_process_group(
        _place.backend,
        store=dist.FileStore(_place.store, _place.size),
        rank=_place.rank,
        world_size=_place.size,
        timeout=timedelta(seconds=_place.collective_timeout),
    )


def place() -> Place:
    """This worker's place, known before there is a process group."""
    assert _place is not None
    return _place


def device() -> torch.device:
    """Where this world's tensors live."""
    return torch.device("cuda", torch.cuda.current_device()) if place().backend == "nccl" else torch.device("cpu")


def main(where: Place, join: bool, requests: Connection, log: str) -> None:
    """Serve requests until the parent closes the pipe. Whatever is printed goes to this rank's log."""
    global _place
    _place = where
    _send_output_to(log)
    enter_host(where.rank, where.size)
    torch.set_num_threads(1)
    status: tuple[str, Any] = ("ok", None)
    try:
        if join:
            join_group()
    except Exception as error:  # reported like a failing case
        status = _failure(error)
    requests.send_bytes(dumps(status))
    while True:
        try:
            request = requests.recv_bytes()
        except EOFError:
            os._exit(0)  # no destructors: peers may be gone, and gloo would wait for them
        try:
            function, args = pickle.loads(request)  # here, since the import of its module may fail
            answer = dumps(("ok", _find(function)(*args)))
        except BaseException as error:  # the parent decides what a failure means
            answer = dumps(_failure(error))
        requests.send_bytes(answer)


def _find(function: Any) -> Any:
    if callable(function):
        return function
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def _failure(error: BaseException) -> tuple[str, Any]:
    return "error", (type(error).__name__, str(error), "".join(traceback.format_exception(error)))


def _send_output_to(log: str) -> None:
    file = Path(log).open("w", buffering=1)  # noqa: SIM115 - open for the life of the process
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
