# SPDX-License-Identifier: MIT
"""Where things go on a machine with GPUs, read in torch's sources and simulated here: no kernel runs.

- torch 2.0 lists the CPU among the devices of an NCCL group (`BackendConfig` in distributed_c10d.py), which NCCL does
  not serve: a header goes to the CPU only where another backend serves it.
- Before `torch.cuda.set_device` the current device is cuda:0 on every rank: a header goes to the device of the input.
- gloo serves CUDA tensors in broadcast and all-reduce only (the table in torch's documentation): we call nothing else.
- Since NCCL 2.29 grouped broadcasts are fused into one AllGatherV, and a port of it to RCCL corrupted buffers from the
  5th block on: contents are checked on six ranks, over NCCL too where there are six devices.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shared_distributed._agree as agree
import shared_distributed._fast as fast
import shared_distributed._headers as headers
from tests.support import Worlds
from tests.support.gather import run_cases
from tests.support.oracle import Case, gathered, gradient, same


class Group:
    """Two ranks, of which this is the first."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


@pytest.mark.parametrize("call", [agree._Call, fast.FastCall], ids=["heart", "package"])
@pytest.mark.parametrize(
    ("backends", "inputs", "expected"),
    [
        ("cpu:gloo", ["cpu"], "cpu"),
        ("cuda:nccl", ["cuda:3"], "cuda:3"),
        ("cuda:nccl", [], "cuda"),
        ("cuda:nccl", ["cpu"], "cuda"),
        ("cpu:gloo,cuda:nccl", ["cuda:3"], "cpu"),
        ("cuda:nccl,cpu:nccl", ["cuda:3"], "cuda:3"),
        ("cuda:gloo", ["cuda:3"], "cuda:3"),
    ],
    ids=str,
)
def test_the_header_goes_to_a_device_that_the_group_serves(
    backends: str, inputs: list[str], expected: str, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU where a backend other than NCCL serves it, else the input's device, else the current one of that type."""
    seen: list[torch.device] = []

    def note(ints: list[list[int]], device: torch.device | str) -> torch.Tensor:
        seen.append(torch.device(device))
        return torch.tensor(ints)

    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    monkeypatch.setattr(call, "spread", lambda call, rows, counts: None)  # nobody is there
    monkeypatch.setattr(headers.Mail, "exchange", lambda mail, ints, *_: (note([ints] * 2, "cpu").tolist(), []))
    for module in (agree, headers):
        monkeypatch.setattr(module, "_long_tensor", note)
    for module in (agree, fast):
        monkeypatch.setattr(module, "Tensor", SimpleNamespace)  # stands for a tensor on a device that is not here
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    xs = [SimpleNamespace(device=torch.device(name)) for name in inputs]
    assert call(0, None, False, Group()).exchange([0, 8, 9], xs) == [[0, 8, 9]] * 2
    assert seen == [torch.device(expected)]


def test_gloo_moves_cuda_tensors_by_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broadcasts and all-reduces, for headers and rows."""
    call: Any = fast.FastCall(0, None, False, Group())
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo,cuda:gloo")
    assert call.transport(torch.device("cpu")) is fast.TRANSPORTS["gloo"]
    assert call.transport(torch.device("cuda")) is fast.BROADCASTS
    called: list[str] = []
    noting = fast.BROADCASTS._replace(gather=lambda *args: called.append("broadcasts") or [])
    monkeypatch.setattr(fast, "BROADCASTS", noting)
    call.spread(SimpleNamespace(device=torch.device("cuda"), split=list), [1, 1])
    assert called == ["broadcasts"]


def test_contents_on_six_ranks(backend: str, worlds: Worlds) -> None:
    """Blocks of very different length, empty ones among them, along two dims, and their summed gradient."""
    cases = [
        Case((1, 3000, 0, 7, 500, 2), 0, "float32", "list"),
        Case((0, 5, 5, 0, 900, 31), 1, "bfloat16", "no"),
        Case((64,) * 6, 0, "float32", "no"),
    ]
    for rank, results in enumerate(worlds.get(backend, 6).run(run_cases, "core sum", cases)):
        for case, result in zip(cases, results, strict=True):
            assert same(result.gathered, gathered(case)), case
            assert result.gradient is None or same(result.gradient, gradient(case, rank, "sum")), case
