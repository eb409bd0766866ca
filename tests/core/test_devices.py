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
import shared_distributed._choose as choose
import shared_distributed._ranks as ranks
from tests.support import Worlds
from tests.support.gather import run_cases
from tests.support.oracle import Case, gathered, gradient, same


class Group:
    """A process group of two ranks, of which this is the first."""


@pytest.fixture
def nobody_there(monkeypatch: pytest.MonkeyPatch) -> Group:
    """A group that moves nothing; torch asks nobody about it."""
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    for module in (ranks, agree):
        monkeypatch.setattr(module, "Tensor", SimpleNamespace)  # stands for a tensor on a device that is not here
    return Group()


def on(device: str) -> Any:
    """A tensor's place."""
    return SimpleNamespace(device=torch.device(device))


@pytest.mark.parametrize(
    ("backends", "x", "expected"),
    [
        ("cpu:gloo", "cpu", "cpu"),
        ("cuda:nccl", "cuda:3", "cuda:3"),
        ("cuda:nccl", "cpu", "cuda"),
        ("cpu:gloo,cuda:nccl", "cuda:3", "cpu"),
        ("cuda:nccl,cpu:nccl", "cuda:3", "cuda:3"),
        ("cuda:gloo", "cuda:3", "cuda:3"),
    ],
    ids=str,
)
def test_the_header_goes_to_a_device_that_the_group_serves(
    backends: str, x: str, expected: str, nobody_there: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU where a backend other than NCCL serves it, else the input's device, else the current one of that type."""
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    assert ranks._Ranks(on(x), nobody_there).header_device == torch.device(expected)


def test_a_tensor_on_a_wrong_device_does_not_move_the_header(
    nobody_there: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank with a tensor on the CPU meets the others where its group's tensors have been, or where it was bound."""
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")
    devices = [ranks._Ranks(on(x), nobody_there).header_device for x in ("cpu", "cuda:1", "cpu")]
    assert devices == [torch.device(name) for name in ("cuda", "cuda:1", "cuda:1")]
    bound: Any = Group()
    bound.bound_device_id = torch.device("cuda:2")
    assert [ranks._Ranks(on(x), bound).header_device for x in ("cpu", "cuda:1")] == [torch.device("cuda:2")] * 2


@pytest.mark.parametrize(
    ("backends", "device", "way"),
    [
        ("cpu:gloo,cuda:gloo", "cpu", "Gloo"),
        ("cpu:gloo,cuda:gloo", "cuda", "AnyBackend"),  # gloo has broadcast and all-reduce only, off the CPU
        *[("cuda:" + name, "cuda", "Nccl") for name in ("nccl", "nccl2", "nccl-legacy", "nccl-lazy", "ncclx")],
        *[(f"{kind}:{name}", kind, "AnyBackend") for kind, name in [("xpu", "xccl"), ("hpu", "hccl"), ("cpu", "ucc")]],
        ("cpu:mpi", "cpu", "AnyBackend"),
    ],
)
def test_rows_go_by_the_backend_that_serves_their_device(backends: str, device: str, way: str) -> None:
    """NCCL by any of its names; what is not known takes broadcasts, which every backend has."""
    by_device = dict(entry.split(":") for entry in backends.split(","))
    assert choose._way_of(device, by_device).__name__ == way


@pytest.mark.parametrize(
    ("backends", "world", "device_type"),
    [
        ({"cpu": "gloo"}, 1024, "cpu"),
        ({"cuda": "nccl"}, 2, "cuda"),
        ({"cpu": "gloo", "cuda": "nccl"}, 64, "cpu"),
        ({"cpu": "gloo", "cuda": "nccl"}, 65, "cuda"),
        ({"cpu": "gloo", "cuda": "gloo"}, 65, "cpu"),
    ],
)
def test_headers_go_by_the_group_alone(backends: dict[str, str], world: int, device_type: str) -> None:
    """In a group of gloo and NCCL over gloo, which needs no GPU; among many ranks over NCCL, which is faster there."""
    assert choose._device_type_of_headers(backends, world) == device_type


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
