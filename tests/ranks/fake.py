# SPDX-License-Identifier: MIT
"""The CUDA path without a GPU: fake tensors on a fake process group. No kernel runs; shapes, devices and syncs show."""

import importlib
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import shared_distributed as core

agreement = importlib.import_module("shared_distributed._agreement")
autograd = importlib.import_module("shared_distributed._autograd")
transport = importlib.import_module("shared_distributed._transport")


def syncs_on_cuda(world: int, rank: int) -> dict[str, Any]:
    """How often a call reads from the device to the host; `.item()` and `.tolist()` of a fake tensor raise."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    # the fake group takes NCCL's row of the table
    transport._GATHER["fake"], transport._SUM["fake"] = transport._gather_on_nccl, transport._sum_on_nccl
    sizes = [r % 3 + 1 for r in range(world)]
    reads: list[tuple[int, ...]] = []

    def read(headers: torch.Tensor) -> list[list[int]]:
        reads.append(tuple(headers.shape))
        return [agreement.Claim("all_gather sum float32 cuda", (n, 5), 0).header() for n in sizes]

    transport.read_to_host = read
    seen: dict[str, Any] = {}
    with FakeTensorMode():
        x = torch.empty(sizes[rank], 5, device="cuda")
        for grad in ("sum", "local"):
            out, _ = core.all_gather(x, sizes=sizes, grad=grad)  # type: ignore[arg-type]
            # autograd itself cannot run on CUDA tensors of a CPU build: its backwards are called by hand
            layout = core.RowLayout(sizes)
            ctx = SimpleNamespace(dims=[0], layout=layout, grad=grad, group=None, needs_input_grad=[False] * 5 + [True])
            gradient = autograd._Gather.backward(ctx, out)[-1]
            seen[grad] = (tuple(out.shape), out.device.type, tuple(gradient.shape), gradient.device.type)
        seen["reads with sizes known"] = len(reads)
        _, as_tensor = core.all_gather_variable_dim(x, sizes=sizes)
        again, back = core.all_gather_variable_dim(x, sizes=as_tensor)  # remembered: no read
        seen["passed back"] = (tuple(again.shape), back.device.type, len(reads))
        as_tensor.add_(0)  # written to: no longer to be trusted
        try:
            core.all_gather_variable_dim(x, sizes=as_tensor)
        except Exception as error:
            seen["written to"] = type(error).__name__
        out, found = core.all_gather(x)
        seen["not known"] = (tuple(out.shape), found == tuple(sizes), len(reads))
    return seen
