# SPDX-License-Identifier: MIT
"""What a call costs on NCCL, by counting: python -m tests.emulated tests.emulated.counts prints the table."""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from shared_distributed_tools.render import render
from tests.emulated.calls import Counts, counted
from tests.support import World
from tests.support.gather import pad_to_longest
from tests.support.world import device

WORLD = 4
SMALL = [rank % 3 + 1 for rank in range(WORLD)]
RAGGED = [100 * size for size in SMALL]
EVEN = [100] * WORLD
WIDTH = 512

Calls = dict[str, Callable[[], object]]


def rows_of(sizes: list[int], dim: int = 0) -> Tensor:
    shape = [WIDTH, WIDTH]
    shape[dim] = sizes[dist.get_rank()]
    return torch.ones(shape, device=device())


def forward(gather: Any, sizes: list[int], given: bool, dim: int = 0) -> Callable[[], object]:
    x = rows_of(sizes, dim)
    if sizes is SMALL:
        x = x[:, :4].contiguous()
    return lambda: gather(x, dim, sizes if given else None)


def backward(gather: Any, sizes: list[int], dim: int = 0, expanded: bool = False) -> Callable[[], object]:
    x = rows_of(sizes, dim).requires_grad_()
    gathered, _ = gather(x, dim, sizes)
    gradient = torch.ones((), device=device()).expand_as(gathered) if expanded else torch.ones_like(gathered)
    return lambda: torch.autograd.grad(gathered, x, gradient, retain_graph=True)


def ways(name: str, gather: Any) -> Calls:
    """The same calls of the package and of a vendored file."""
    return {
        f"{name}, small ragged, sizes not given": forward(gather, SMALL, False),
        f"{name}, small ragged, sizes given": forward(gather, SMALL, True),
        f"{name}, ragged, sizes not given": forward(gather, RAGGED, False),
        f"{name}, ragged, sizes given": forward(gather, RAGGED, True),
        f"{name}, ragged along dim 1, sizes given": forward(gather, RAGGED, True, 1),
        f"{name}, even, sizes not given": forward(gather, EVEN, False),
        f"{name}, even, sizes given": forward(gather, EVEN, True),
        f"{name}, ragged, summed backward": backward(gather, RAGGED),
        f"{name}, ragged, summed backward of an expanded gradient": backward(gather, RAGGED, expanded=True),
        f"{name}, ragged along dim 1, summed backward": backward(gather, RAGGED, 1),
        f"{name}, even, summed backward": backward(gather, EVEN),
    }


def others() -> Calls:
    """What one would write without either."""
    even, ragged = rows_of(EVEN), rows_of(RAGGED)
    out = torch.empty(sum(EVEN), WIDTH, device=device())

    def pad_and_gather() -> Tensor:
        size = torch.tensor([len(ragged)], device=device())
        found = [torch.empty_like(size) for _ in range(WORLD)]
        dist.all_gather(found, size)
        return pad_to_longest(ragged, 0, torch.cat(found).tolist())

    return {
        "torch's all_gather_into_tensor, even, sizes given": lambda: dist.all_gather_into_tensor(out, even),
        "pad to the longest, gather, cut": pad_and_gather,
    }


def loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("vendored", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def counts_of_calls(vendored: str) -> dict[str, Counts]:
    """Every call's counts on this rank."""
    musiclm = loaded(vendored)
    calls = ways("package", lambda x, dim, sizes: core.all_gather(x, dim, sizes=sizes))
    calls |= ways("vendored", lambda x, dim, sizes: musiclm.AllGather(dim, all_reduce_grads=True)(x, listed(sizes)))
    return {label: counted(call) for label, call in (calls | others()).items()}


def listed(sizes: list[int] | None) -> Any:
    return None if sizes is None else list(sizes)


def counts_by_rank(backend: str) -> list[dict[str, Counts]]:
    with tempfile.TemporaryDirectory() as folder, World(WORLD, backend) as world:
        vendored = Path(folder) / "vendored.py"
        vendored.write_text(render("musiclm"))
        return world.run(counts_of_calls, str(vendored))


def table(found: dict[str, Counts]) -> str:
    lines = ["| call | kernels | launches of NCCL (operations) | copies between host and device | waits of the host |"]
    lines.append("|---|---|---|---|---|")
    for label, n in found.items():
        copies = n.host_to_device + n.device_to_host
        lines.append(f"| {label} | {n.kernels} | {n.nccl_launches} ({n.nccl_operations}) | {copies} | {n.syncs} |")
    return "\n".join(lines)


if __name__ == "__main__":
    from tests.emulated import counts  # not `__main__`: ranks import what they run by its name

    print(table(counts.counts_by_rank("nccl")[0]))
