# SPDX-License-Identifier: MIT
"""One rank: runs the functions that its parent sends; the first is `enter`. Whatever it prints is logged."""

import faulthandler
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Place(NamedTuple):
    """What a rank needs to join the others."""

    rank: int
    size: int
    backend: str
    folder: str  # of the store and the logs
    timeout: float  # seconds for a collective


class RankError(NamedTuple):
    """What one rank raised."""

    type: str
    message: str
    traceback: str


_place: Place


def place() -> Place:
    """This rank's place, known before there is a process group."""
    return _place


def log_of(rank: int, folder: str) -> Path:
    """Where a rank's output goes."""
    return Path(folder) / f"rank-{rank}.log"


def join_group() -> None:
    """Join the process group; done at the start, unless the world was made with `join=False`."""
    here = place()
    if here.backend == "nccl":
        torch.cuda.set_device(here.rank)  # all ranks of a world are on this machine: a device each
    store = dist.FileStore(str(Path(here.folder) / "store"), here.size)
    timeout = timedelta(seconds=here.timeout)
    dist.init_process_group(here.backend, store=store, rank=here.rank, world_size=here.size, timeout=timeout)


def enter(prepare: Callable[[], object] | None, join: bool) -> None:
    """What every rank does first."""
    if prepare is not None:
        prepare()
    if join:
        join_group()


def serve(where: Place, requests: Connection) -> None:
    """Run what is asked for until the parent closes the pipe."""
    global _place
    _place = where
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which then ends the ranks
    parent = multiprocessing.parent_process()
    if parent is not None:  # a rank of torchrun's has none, and ends with its pipe
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    log = log_of(where.rank, where.folder).open("w", buffering=1)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    torch.set_num_threads(1)
    while True:
        try:
            request = requests.recv_bytes()
        except EOFError:
            os._exit(0)  # no destructors: peers may be gone, and gloo would wait for them
        requests.send_bytes(_answer(request))


def _answer(request: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(request)  # here, since the import of its module may fail
        return dumps(function(*arguments))
    except BaseException as error:  # the parent decides what a failure means
        told = "".join(traceback.format_exception(error))
        return dumps(RankError(type(error).__name__, str(error), told))


def _end_with(parent: int) -> None:
    wait([parent])
    os._exit(1)


class _Pickler(pickle.Pickler):
    """Tensors travel as their own bytes, detached: torch's pickling knows no fp8, and keeps `requires_grad`."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        plain = obj.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        return _rebuild, (bytes(plain.view(-1).view(torch.uint8).tolist()), obj.dtype, tuple(obj.shape))


def _rebuild(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape) if data else torch.empty(shape, dtype=dtype)


def dumps(value: Any) -> bytes:
    """Any value with tensors in it, as bytes for `pickle.loads`."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()
