# SPDX-License-Identifier: MIT
"""Which collectives a rank enters, and with how many bytes; how much it allocates."""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import getattr_static
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tests.support.gather import gather_by, make_input
from tests.support.oracle import Case, upstream
from tests.support.world import device

COLLECTIVES = (
    "all_to_all_single", "all_gather", "all_gather_into_tensor", "all_gather_single", "gather", "broadcast",
    "all_reduce", "reduce_scatter", "isend", "irecv",
)  # fmt: skip


@contextmanager
def slots(nbytes: int) -> Iterator[None]:
    """So many bytes beside the headers of all ranks, for rows that come along; with none, all take a second round."""
    from shared_distributed import _call, _gloo, _nccl

    saved = _nccl.SLOTS, _gloo.ROOM
    _nccl.SLOTS = _gloo.ROOM = nbytes
    _call._known_groups.clear()
    try:
        yield
    finally:
        _nccl.SLOTS, _gloo.ROOM = saved
        _call._known_groups.clear()


@contextmanager
def watched() -> Iterator[list[tuple[str, int, int]]]:
    """Every collective entered meanwhile, with its bytes; each tensor handed over must be contiguous."""
    from shared_distributed import _gloo

    calls: list[tuple[str, int, int]] = []

    def watch(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            flat = [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(t, Tensor)]
            assert all(t.is_contiguous() for t in flat), f"{name} was handed a non-contiguous tensor"
            nbytes = [t.numel() * t.element_size() for t in flat]
            calls.append((name, nbytes[-1], sum(nbytes[:-1])))
            return original(*args, **kwargs)

        return wrapper

    here = [name for name in COLLECTIVES if hasattr(dist, name)]  # torch gave some new names
    # several messages: `messages_sent` counts those
    with replaced(dist, here, watch), replaced(_gloo, ["send_to_first"], watch):
        yield calls


@contextmanager
def messages_sent() -> Iterator[list[tuple[int, int]]]:
    """Every message sent to one other rank meanwhile: to whom, and its bytes."""
    sent: list[tuple[int, int]] = []

    def watch(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(group: Any, tensors: list[Tensor], rank: int, tag: int) -> Any:
            sent.append((rank, sum(t.numel() * t.element_size() for t in tensors)))
            return original(group, tensors, rank, tag)

        return wrapper

    with replaced(dist.ProcessGroup, ["send"], watch):
        yield sent


@contextmanager
def replaced(home: Any, names: Iterable[str], by: Callable[[str, Any], Any]) -> Iterator[None]:
    """These attributes, each replaced by what a function makes of it."""
    originals = {name: getattr_static(home, name) for name in names}
    for name in originals:
        setattr(home, name, by(name, getattr(home, name)))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(home, name, original)


def counted(subject: str, case: Case) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
    """The collectives of a gather's forward and of its backward."""
    rank = dist.get_rank()
    x = make_input(case, rank).requires_grad_()
    sizes = list(case.sizes) if case.given == "list" else None
    with watched() as forward:
        gathered, _ = gather_by(subject)(x, case.dim, sizes)
    arriving = upstream(rank, gathered.shape, case.dtype).to(device())
    with watched() as backward:
        torch.autograd.grad(gathered, x, arriving)
    return list(forward), list(backward)


def peak_bytes(call: Callable[[], object]) -> int:
    """The most that torch had allocated at one time during a call, over what there was before it.

    From the profiler: the process's own memory would show the allocator's habits.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = call()  # alive until the profiler stops: a result freed on the way would hide its bytes
    del kept
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    memory = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    deltas: list[int] = [delta for _, delta in sorted(memory, key=lambda event: event[0])]
    return max(accumulate(deltas, initial=0))
