# SPDX-License-Identifier: MIT
"""Single calls on a rank, with what they raised as data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tests.support.oracle import values
from tests.support.world import device


class Outcome(NamedTuple):
    """What a call gave: a value, or an error's class, its bases and its message."""

    value: Any = None
    error: str = ""
    bases: tuple[str, ...] = ()
    message: str = ""


def attempt(call: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(value=call())
    except Exception as error:  # any error is a result here
        return Outcome(None, type(error).__name__, tuple(c.__name__ for c in type(error).__mro__), str(error))


def make_tensor(spec: dict[str, Any]) -> Any:
    kind = spec.get("kind", "dense")
    if kind == "not a tensor":
        return 1.0
    shape = spec.get("shape", (2, 3))
    if kind == "meta":
        return torch.empty(shape, device="meta")
    if kind == "nested":
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    if kind == "quantized":
        return torch.quantize_per_tensor(torch.ones(shape), 0.5, 0, torch.qint8)
    if kind == "lazy":
        return torch.nn.UninitializedParameter()
    if kind == "DTensor":
        return distributed_tensor(values(dist.get_rank(), shape, "float32"))
    x = values(dist.get_rank(), shape, spec.get("dtype", "float32")).to(device())
    return x.to_sparse() if kind == "sparse" else x


def distributed_tensor(x: torch.Tensor) -> Any:
    """A DTensor around this rank's part; nobody else is asked."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    # without a group: torch 2.15 counts one that this rank makes alone, and the next group of all ranks would hang
    mesh = DeviceMesh("cpu", [dist.get_rank()], _init_backend=False)
    return DTensor.from_local(x, mesh, [Shard(0)], run_check=False)


def usable_after(outcome: Outcome) -> Outcome:
    """The same, in a group that can still be used; otherwise this rank fails, and the world is made anew."""
    ones = torch.ones(1, device=device())
    try:
        dist.all_reduce(ones)
    except Exception as error:
        raise AssertionError(f"the group is lost after {outcome}") from error
    assert ones.item() == dist.get_world_size()
    return outcome
