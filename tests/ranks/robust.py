# SPDX-License-Identifier: MIT
"""Uses that go another way on each rank, or another way than one would think."""

import copy
import gc
import os
import pickle
import warnings
from typing import Any

import torch
import torch.distributed as dist

import shared_distributed as core
from harness.worker import device
from ranks.calls import Outcome, attempt, usable_after


def waited_in_other_orders() -> list[list[float]]:
    """Two gathers, waited for in the order of their start on rank 0 only; the gradient of each rank's own loss."""
    rank = dist.get_rank()
    x, y = (torch.ones(rank + 1, device=device(), requires_grad=True) for _ in range(2))
    started = [core.all_gather_async(x), core.all_gather_async(y)]
    if rank == 0:
        (a, _), (b, _) = started[0].wait(), started[1].wait()
    else:
        (b, _), (a, _) = started[1].wait(), started[0].wait()
    (a.sum() + 100 * b.sum()).backward()
    return [x.grad.tolist(), y.grad.tolist()]  # type: ignore[union-attr]


def waited_for_twice_or_never() -> dict[str, Any]:
    rank = dist.get_rank()
    x = torch.full((rank + 1, 2), float(rank), device=device(), requires_grad=True)
    gathering = core.all_gather_async(x, 1 if rank < 0 else 0)
    first, again = gathering.wait(), gathering.wait()
    core.all_gather_async(x)  # dropped at once
    core.all_gather_async(x.T, 1)
    gc.collect()
    with torch.no_grad():
        plain = core.all_gather_async(x)
    return {
        "same": first[0] is again[0] and first[1] == again[1],
        "next": core.all_gather(x.detach())[0][:, 0].tolist(),
        "mode at the start": plain.wait()[0].requires_grad,
    }


def scattered_where_some_want_it(wants: list[bool]) -> list[float] | None:
    """The gradient of a reduce_scatter that only some ranks' inputs need."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = list(range(1, world + 1))
    x = torch.full((sum(sizes),), float(rank), device=device(), requires_grad=wants[rank])
    own = core.reduce_scatter(x, sizes=sizes)
    ((rank + 1) * own).sum().backward()
    assert own.tolist() == [float(sum(range(world)))] * sizes[rank]
    return None if x.grad is None else x.grad.tolist()


def checked(how: str) -> Outcome:
    """A gather with sizes that are wrong in some way, and `check=`."""
    rank = dist.get_rank()
    x = torch.ones(2, 3, device=device())
    if how == "other sizes":
        return attempt(lambda: core.all_gather(x, sizes=[2, 2 + rank], check=True))
    if how == "wrong sizes":
        return attempt(lambda: core.all_gather(x, sizes=[2, 3], check=True))
    if how == "no sizes":
        return attempt(lambda: core.all_gather(x, check=False))
    if how == "no list":
        return usable_after(attempt(lambda: core.all_gather(x, sizes=2.0 if rank else [2, 2], check=True)))
    if how == "no list, scattered":
        return usable_after(attempt(lambda: core.reduce_scatter(x, sizes=2.0 if rank else [1, 1])))
    return attempt(lambda: core.all_gather(x, sizes=[2, 2], check=True)[1])


def meshes() -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    world = dist.get_world_size()
    kind = device().type
    flat = init_device_mesh(kind, (world,))
    square = init_device_mesh(kind, (1, world), mesh_dim_names=("a", "b"))
    x = torch.ones(dist.get_rank() + 1, device=device())
    taken = {"flat": flat, "flat, 0": (flat, 0), "square, 1": (square, 1), "square, b": (square, "b")}
    refused = {"square": square, "a name": "world", "ranks": [0, 1]}
    return {
        **{name: core.all_gather(x, group=group)[1] for name, group in taken.items()},
        **{name: attempt(lambda group=group: core.all_gather(x, group=group)) for name, group in refused.items()},
        "distributed": core.is_distributed(flat),
    }


def copied_and_pickled() -> dict[str, Any]:
    group = dist.new_group(list(range(dist.get_world_size())))
    module = core.AllGather(1, grad="local", group=group)
    twin = copy.deepcopy(torch.nn.Sequential(module))[0]
    plain = pickle.loads(pickle.dumps(core.AllGather(1, grad="local")))
    return {
        "shares": twin.group is group,
        "options": (twin.dim, twin.grad, plain.dim, plain.grad, plain.group),
        "pickled": attempt(lambda: pickle.dumps(module)),
    }


def without_a_group_under_torchrun() -> list[str]:
    """The warnings of two gathers in a process whose environment says that there are others."""
    os.environ["WORLD_SIZE"] = "2"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        core.is_distributed()
        for _ in range(2):
            core.all_gather(torch.ones(3))
    return [str(w.message) for w in caught]
