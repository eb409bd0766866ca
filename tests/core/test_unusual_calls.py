# SPDX-License-Identifier: MIT
"""What people do besides: other orders on each rank, meshes for groups, copies of modules, a forgotten group."""

import copy
import gc
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

import shared_distributed as core
from tests.support import World, Worlds
from tests.support.calls import Outcome, attempt, usable_after
from tests.support.watch import slots
from tests.support.world import device

# ------------------------------------------------------------------ on ranks


def waited_in_other_orders() -> list[list[float]]:
    """Two gathers, waited for in the order of their start on rank 0 only; the gradient of each rank's own loss.

    A MiB a row: smaller ones would be complete when they are started.
    """
    rank = dist.get_rank()
    x, y = (torch.ones(rank + 1, 1 << 18, device=device(), requires_grad=True) for _ in range(2))
    started = [core.all_gather_async(x), core.all_gather_async(y)]
    if rank == 0:
        (a, _), (b, _) = started[0].wait(), started[1].wait()
    else:
        (b, _), (a, _) = started[1].wait(), started[0].wait()
    (a.sum() + 100 * b.sum()).backward()
    return [t.grad[:, 0].tolist() for t in (x, y) if t.grad is not None]


def waited_for_twice_or_never() -> dict[str, Any]:
    rank = dist.get_rank()
    x = torch.full((rank + 1, 2), float(rank), device=device(), requires_grad=True)
    gathering = core.all_gather_async(x, 1 if rank < 0 else 0)
    first, again = gathering.wait(), gathering.wait()
    core.all_gather_async(x)  # dropped at once
    core.all_gather_async(x.T, 1)
    columns = torch.full((200_000, rank + 1), float(rank), device=device())  # too large to be complete at once
    core.all_gather_async(columns, 1)
    gc.collect()
    with torch.no_grad():
        plain = core.all_gather_async(x)
    with torch.inference_mode():
        started = core.all_gather_async(columns, 1, sizes=[1, 2, 3])
    return {
        "started in inference mode": started.wait()[0][0].tolist(),
        "same": first[0] is again[0] and first[1] == again[1],
        "next": core.all_gather(x.detach())[0][:, 0].tolist(),
        "mode at the start": plain.wait()[0].requires_grad,
    }


def first_in_inference_mode() -> list[list[float]]:
    """A group's first gather in inference mode, the next one outside."""
    x = torch.full((dist.get_rank() + 1,), float(dist.get_rank()), device=device())
    with slots(1 << 16):  # and so nothing is kept of earlier ones
        with torch.inference_mode():
            inside = core.all_gather(x)[0].tolist()
        return [inside, core.all_gather(x.requires_grad_())[0].tolist()]


class Wrapping(Tensor):
    """A tensor without memory of its own, as some libraries make them."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # results are plain tensors

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapping":
        self: Wrapping = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, cls) else t, (args, kwargs or {}))
        return function(*args, **kwargs)


def without_memory(on: int) -> list[float]:
    """A rank's tensor wraps another."""
    rank = dist.get_rank()
    x = torch.full((rank + 1,), float(rank), device=device())
    return list(core.all_gather(Wrapping(x) if rank == on else x)[0].tolist())


def that_cannot_be_copied(what: str) -> Outcome:
    """Of the last rank only."""
    x = torch.ones(2, 3, device=device())
    if dist.get_rank():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # masked tensors are a prototype
            x = torch.masked.masked_tensor(x, x > 0) if what == "masked" else torch.empty(2, 3, dtype=torch.uint4)
    return usable_after(attempt(lambda: core.all_gather(x)[1]))


def keys_that_look_alike() -> tuple[list[list[float]], str]:
    """What is gathered under 1 and under "1", and the error for a lone surrogate in a key of one rank."""
    rank = dist.get_rank()
    one, two = torch.ones(1, device=device()), torch.full((1,), 2.0, device=device())
    gathered, _ = core.all_gather({"1": two, 1: one} if rank else {1: one, "1": two})
    clash = usable_after(attempt(lambda: core.all_gather({"\udc80" if rank else "a": one})[1]))
    return [gathered[1].tolist(), gathered["1"].tolist()], clash.error


def along_a_bool() -> list[list[float]]:
    """Python takes True for 1, and torch takes it only here and there."""
    rank = dist.get_rank()
    return list(core.all_gather(torch.full((2, rank + 1), float(rank), device=device()), True)[0].tolist())


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
        return attempt(lambda: core.all_gather(x, sizes=[2 + rank, 2], check=True))
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


class Scaled(core.AllGather):
    """A gather with an argument of its own."""

    def __init__(self, scale: float, group: Any) -> None:
        super().__init__(1, grad="local", group=group)
        self.scale = scale


def copied_and_pickled() -> dict[str, Any]:
    group = dist.new_group(list(range(dist.get_world_size())))
    module = core.AllGather(1, grad="local", group=group)
    twin = copy.deepcopy(torch.nn.Sequential(module))[0]
    scaled = Scaled(3.0, group).eval()
    scaled.register_forward_hook(lambda module, args, output: None)
    deep, shallow = copy.deepcopy(scaled), copy.copy(scaled)
    plain = pickle.loads(pickle.dumps(core.AllGather(1, grad="local")))
    return {
        "shares": twin.group is group and deep.group is group and shallow.group is group,
        "subclass": (deep.scale, deep.training, len(deep._forward_hooks), shallow.scale),
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
    return [f"{Path(w.filename).name}: {w.message}" for w in caught]


# ------------------------------------------------------------------ the tests


def test_async_gathers_may_be_waited_for_in_any_order(backend: str, worlds: Worlds) -> None:
    """The gradient is recorded when a gather starts, so each rank may wait in an order of its own."""
    for rank, answer in enumerate(worlds.get(backend, 2).run(waited_in_other_orders)):
        assert answer == [[2.0] * (rank + 1), [200.0] * (rank + 1)]


def test_a_gathering_waited_for_twice_or_never(backend: str, worlds: Worlds) -> None:
    """The second `wait` gives the same; one that is dropped is finished; grad mode at the start decides."""
    for seen in worlds.get(backend, 3).run(waited_for_twice_or_never):
        rows = [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
        assert seen == {"same": True, "next": rows, "mode at the start": False, "started in inference mode": rows}


def test_the_first_gather_in_inference_mode(backend: str, worlds: Worlds) -> None:
    """What is kept for later gathers can be written to outside of it."""
    assert worlds.get(backend, 2).run(first_in_inference_mode) == [[[0.0, 1.0, 1.0]] * 2] * 2


@pytest.mark.parametrize("on", [0, 1])
def test_a_tensor_without_memory_of_its_own(on: int, backend: str, worlds: Worlds) -> None:
    """Its rows are read by torch, never from an address."""
    assert worlds.get(backend, 2).run(without_memory, on) == [[0.0, 1.0, 1.0]] * 2


@pytest.mark.parametrize("what", ["uint4", "masked"])
def test_a_tensor_that_torch_cannot_copy_on_one_rank(what: str, backend: str, worlds: Worlds) -> None:
    """The same error on every rank, and the group stays usable."""
    if what == "uint4" and not hasattr(torch, what):
        pytest.skip("this torch has no uint4")
    outcomes = worlds.get(backend, 2).run(that_cannot_be_copied, what)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 2
    assert outcomes[0].message == outcomes[1].message


def test_keys_that_look_alike(backend: str, worlds: Worlds) -> None:
    """1 and "1" are two keys, whatever the order; a key that is no text is shown escaped, where ranks differ in it."""
    assert worlds.get(backend, 2).run(keys_that_look_alike) == [([[1.0, 1.0], [2.0, 2.0]], "DisagreementError")] * 2


def test_a_bool_counts_as_a_dim(backend: str, worlds: Worlds) -> None:
    """True is dim 1, also where rows come with the sizes."""
    assert worlds.get(backend, 2).run(along_a_bool) == [[[0.0, 1.0, 1.0]] * 2] * 2


@pytest.mark.parametrize("wants", [[True, False, False], [False, True, True]], ids=str)
def test_reduce_scatter_where_only_some_want_a_gradient(wants: list[bool], backend: str, worlds: Worlds) -> None:
    """The ranks agree first: all enter the gather in the backward, or none does."""
    expected = [1.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    answers = worlds.get(backend, 3).run(scattered_where_some_want_it, wants)
    assert answers == [expected if want else None for want in wants]


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("other sizes", "DisagreementError", ["(2, 2)", "(3, 2)"]),
        ("wrong sizes", "BadInputError", ["(2, 3)", "rank 1 has 2"]),
        ("no sizes", "BadInputError", ["check=False"]),
        ("no list", "BadInputError", ["rank 1 of 2", "(2, 3)", "float"]),
        ("no list, scattered", "BadInputError", ["rank 1 of 2", "float"]),
        ("right", "", []),
    ],
)
def test_check_compares_given_sizes(how: str, error: str, words: list[str], backend: str, worlds: Worlds) -> None:
    """With `check=True` wrong sizes are one error on every rank, which prints them."""
    outcomes = worlds.get(backend, 2).run(checked, how)
    assert [outcome.error for outcome in outcomes] == [error] * 2
    assert outcomes[0].message == outcomes[1].message
    assert [word for word in words if word not in outcomes[0].message] == []


def test_a_mesh_is_a_group(backend: str, worlds: Worlds) -> None:
    """A 1-d mesh, or a mesh and its dim; anything else is refused, with what to pass."""
    pytest.importorskip("torch.distributed.device_mesh", reason="this torch has no meshes")
    if backend == "nccl-rules":
        pytest.skip("a mesh makes process groups of its own, with torch's own backends")
    for seen in worlds.get(backend, 2).run(meshes):
        assert [seen[name] for name in ("flat", "flat, 0", "square, 1", "square, b")] == [(1, 2)] * 4
        for name in ("square", "a name", "ranks"):
            assert seen[name].error == "BadInputError"
            assert "get_group" in seen[name].message
        assert seen["distributed"]


def test_a_copy_of_a_module_shares_its_group(backend: str, worlds: Worlds) -> None:
    """EMA copies modules deeply. Pickling one with a group raises: the default group must not take its place."""
    for seen in worlds.get(backend, 2).run(copied_and_pickled):
        assert seen["shares"]
        assert seen["subclass"] == (3.0, False, 1, 3.0)
        assert seen["options"] == (1, "local", 1, "local", None)
        assert seen["pickled"].error == "TypeError"
        assert "build it where it is used" in seen["pickled"].message


def test_a_forgotten_process_group_is_warned_about() -> None:
    """Under a launcher and without `init_process_group`, every rank would silently train alone: one warning."""
    with World(1, join=False) as world:
        ((warning,),) = world.run(without_a_group_under_torchrun)
    assert warning.startswith(f"{Path(__file__).name}: "), "it points at the call"
    assert "init_process_group" in warning
