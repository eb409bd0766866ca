# SPDX-License-Identifier: MIT
"""Single calls on a rank, with what they raised as data."""

import importlib
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from harness.worker import device, join_group, place
from oracle import values
from ranks.gather import gather_by


def core() -> Any:
    """The core, imported when asked for: the vendored files are tested where there is none."""
    return importlib.import_module("shared_distributed")


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


def bad_then_good(subject: str, by_rank: list[dict[str, Any]], check: bool) -> tuple[Outcome, list[float]]:
    """A gather with arguments of each rank's own, then a valid one in the same group."""
    rank = dist.get_rank()
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "1" if check else "0"
    gather = gather_by(subject)
    spec = by_rank[rank]
    x = make_tensor(spec)
    outcome = attempt(lambda: gather(x, spec.get("dim", 0), spec.get("sizes")) and None)
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "0"
    good = gather(torch.full((rank + 1,), float(rank), device=device()), 0, None)[0]
    return outcome, good.tolist()


def with_sizes(sizes: list[list[int]]) -> Outcome:
    """A gather of two rows with sizes of each rank's own, and nothing after it."""
    x = torch.ones(2, 3, device=device())
    return attempt(lambda: core().all_gather(x, sizes=sizes[dist.get_rank()]))


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
        return nn.UninitializedParameter()
    if kind == "DTensor":
        return distributed_tensor(values(dist.get_rank(), shape, "float32"))
    x = values(dist.get_rank(), shape, spec.get("dtype", "float32")).to(device())
    return x.to_sparse() if kind == "sparse" else x


def distributed_tensor(x: torch.Tensor) -> Any:
    """A DTensor around this rank's part; nobody else is asked."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    alone = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
    mesh = DeviceMesh.from_group(alone, "cpu")
    return DTensor.from_local(x, mesh, [Shard(0)], run_check=False)


def call_reduce_scatter(specs: list[dict[str, Any]], sizes: list[Any], dim: int, check: bool) -> Outcome:
    rank = dist.get_rank()
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "1" if check else "0"
    x = make_tensor(specs[rank])
    outcome = attempt(lambda: core().reduce_scatter(x, dim, sizes=sizes[rank]))
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "0"
    return usable_after(outcome)


def call_helper(who: str, name: str, specs: list[dict[str, Any]]) -> Outcome:
    """One of the helpers of the core or of an adapter, on a tensor of each rank's own."""
    spec, module = specs[dist.get_rank()], core() if who == "core" else adapter(who)
    return usable_after(attempt(lambda: getattr(module, name)(make_tensor(spec), **spec.get("kwargs", {}))))


def usable_after(outcome: Outcome) -> Outcome:
    """The same, in a group that can still be used; otherwise this rank fails, and the world is made anew."""
    ones = torch.ones(1, device=device())
    try:
        dist.all_reduce(ones)
    except Exception as error:
        raise AssertionError(f"the group is lost after {outcome}") from error
    assert ones.item() == dist.get_world_size()
    return outcome


def different_operations() -> Outcome:
    x = torch.ones(2, 3, device=device())
    return attempt(lambda: core().all_gather(x) if dist.get_rank() else core().gather_sizes(x, dim=0))


def different_grad(grads: list[str]) -> Outcome:
    x = torch.ones(2, 3, device=device())
    return attempt(lambda: core().all_gather(x, grad=grads[dist.get_rank()])[1])  # type: ignore[arg-type]


def different_grad_mode(wants: list[bool], enabled: list[bool], grad: str) -> Outcome:
    rank = dist.get_rank()
    x = torch.ones(2, 3, device=device(), requires_grad=wants[rank])
    with torch.set_grad_enabled(enabled[rank]):
        return attempt(lambda: core().all_gather(x, grad=grad)[0].requires_grad)  # type: ignore[arg-type]


def some_want_the_gradient(subject: str, wants: list[bool]) -> tuple[bool, list[float] | None]:
    """A summed backward that only some inputs need: every rank must enter it."""
    rank = dist.get_rank()
    x = torch.full((rank + 1,), float(rank), device=device(), requires_grad=wants[rank])
    gathered, _ = gather_by(subject)(x, 0, None)
    (gathered * (rank + 1) * torch.arange(1.0, len(gathered) + 1, device=device())).sum().backward()
    return gathered.requires_grad, None if x.grad is None else x.grad.tolist()


# ------------------------------------------------------------------ without a process group, and before it


def adapter(name: str) -> Any:
    return importlib.import_module(f"{name.replace('-', '_')}_distributed")


def alone(name: str, how: str) -> Outcome:
    """An adapter's gather in a process that has no group (or is alone in it), and whether it gave `x` itself."""
    x = torch.arange(6.0, device=device()).view(2, 3).requires_grad_()

    def call() -> Any:
        out, sizes = gather_by(f"{name} local")(x, 0, None) if how == "gather" else direct(name, how, x)
        if how != "gather":
            return None
        (gradient,) = torch.autograd.grad(out, x, 2 * torch.ones_like(out))
        return out is x, out, None if sizes is None else sizes.tolist(), gradient

    return attempt(call)


def direct(name: str, how: str, x: torch.Tensor) -> Any:
    if how == "function":
        return adapter(name).AllGatherFunction.apply(x, 0, None, *([False] if name == "musiclm" else []))
    if how == "split_by_rank":
        return adapter(name).split_by_rank(x)
    if how == "gather_sizes":
        return adapter(name).gather_sizes(x, dim=0), None
    return getattr(adapter(name), how)(x), None


def warned_about(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """A call's result, and its warnings with the file that each points at."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = call()
    return value, [f"{type(w.message).__name__} at {Path(w.filename).name}" for w in caught]


def musiclm_built_too_early() -> dict[str, Any]:
    """A module from before the group: it keeps its answer, and warns once, at the first use after."""
    gather = adapter("musiclm").AllGather(dim=0)
    x = torch.ones(place().rank + 1)
    _, early = warned_about(lambda: gather(x))
    join_group()
    (value, sizes), first = warned_about(lambda: gather(x))
    _, second = warned_about(lambda: gather(x))
    fresh = adapter("musiclm").AllGather(dim=0)
    return {
        "before": early,
        "first": first,
        "second": second,
        "same": value is x and sizes is None,
        "fresh": warned_about(lambda: fresh(x)[1].tolist()),
        "attributes": (gather.dim, gather.all_reduce_grads, gather.is_distributed, fresh.is_distributed),
    }


def musiclm_from_an_old_pickle() -> dict[str, Any]:
    """A module as the original pickled it: nn.Module's own state and three attributes, no __init__."""
    cls = adapter("musiclm").AllGather
    blank = nn.Module()
    state = {**blank.__dict__, "dim": 0, "all_reduce_grads": True, "is_distributed": False}
    old = cls.__new__(cls)
    old.__setstate__(pickle.loads(pickle.dumps(state)))
    join_group()
    x = torch.full((place().rank + 1,), 1.0)
    _, stale = warned_about(lambda: old(x))
    old.is_distributed = True
    again = pickle.loads(pickle.dumps(old))
    return {"stale": stale, "gathered": again(x)[0].tolist(), "sizes": again(x)[1].tolist()}


def st_moe_from_an_old_pickle() -> tuple[list[float], list[int], list[float]]:
    """The same for st-moe, whose original knew its dim only: the gradient is the original's own slice."""
    cls, rank = adapter("st-moe").AllGather, dist.get_rank()
    old = cls.__new__(cls)
    old.__setstate__(pickle.loads(pickle.dumps({**nn.Module().__dict__, "dim": 0})))
    again = pickle.loads(pickle.dumps(old))
    x = torch.full((rank + 1,), float(rank), device=device(), requires_grad=True)
    gathered, sizes = again(x)
    (gathered * (rank + 1)).sum().backward()
    return gathered.tolist(), sizes.tolist(), x.grad.tolist()  # type: ignore[union-attr]


def mirasol_asked_too_early() -> dict[str, Any]:
    """The cached answer: kept, warned about once, and forgotten on request."""
    ask = adapter("mirasol").get_is_distributed
    x = torch.ones(place().rank + 1)
    before = warned_about(ask)
    join_group()
    first, second = warned_about(ask), warned_about(ask)
    refused = attempt(lambda: adapter("mirasol").all_gather(x, 0, None)).error
    fresh = ask.__wrapped__()
    hits = ask.cache_info().hits
    ask.cache_clear()
    return {
        "before": before,
        "first": first,
        "second": second,
        "refused": refused,
        "wrapped": fresh,
        "hits": hits,
        "cleared": warned_about(ask),
        "gathers": adapter("mirasol").all_gather(x, 0, None)[1].tolist(),
        "pickled": pickle.loads(pickle.dumps(ask)) is ask,
    }


def spear_asks_every_time() -> tuple[Any, list[int]]:
    """No answer is remembered: a group that comes up later is seen."""
    gather, x = adapter("spear-tts").all_gather, torch.ones(place().rank + 1)
    before = gather(x, 0, None)[1]
    join_group()
    return before, gather(x, 0, None)[1].tolist()


def backward_arity(name: str, function: str) -> int:
    """How many gradients an adapter's backward returns."""
    cls = getattr(adapter(name), function)
    arguments = (torch.ones(dist.get_rank() + 1, device=device()), 0, None, *([False] if name == "musiclm" else []))
    ctx = SimpleNamespace(needs_input_grad=[True, *[False] * (len(arguments) - 1)])
    gathered, _ = cls.forward(ctx, *arguments)
    return len(cls.backward(ctx, torch.ones_like(gathered), None))


def st_moe_helpers() -> dict[str, Any]:
    moe, rank, world = adapter("st-moe"), dist.get_rank(), dist.get_world_size()
    parts = tuple(torch.full((n, 2), float(n), device=device()) for n in range(world))  # sizes with a zero among them
    own, sizes = moe.split_by_rank(parts)
    stacked, even = moe.split_by_rank(torch.arange(world * 10.0, device=device()).view(world, 5, 2))
    out, again = moe.AllGather(dim=0)(own * (rank + 1), sizes=sizes)
    return {
        "own": own.tolist(),
        "sizes": (sizes.tolist(), sizes.dtype == torch.int64),
        "stacked": stacked.tolist(),
        "even": even.tolist(),
        "round trip": (out.tolist(), again.tolist()),
        "list": attempt(lambda: moe.split_by_rank(list(parts))).error,
        "gather_sizes": moe.gather_sizes(torch.ones(2, rank + 1, device=device()), dim=-1).tolist(),
        "same": [t.tolist() for t in moe.all_gather_same_dim(torch.tensor(float(rank), device=device()))],
    }


def variable_dim_carries_no_gradient(name: str) -> tuple[bool, bool]:
    x = torch.ones(dist.get_rank() + 1, device=device(), requires_grad=True)
    same = getattr(adapter(name), "all_gather_same_dim", None)
    return (
        adapter(name).all_gather_variable_dim(x)[0].requires_grad,
        any(t.requires_grad for t in same(x[:1])) if same else False,
    )


def sizes_come_back(name: str, sizes: Any) -> tuple[str, list[int]]:
    x = torch.ones(dist.get_rank() + 1, device=device())
    given = torch.tensor(sizes, dtype=torch.int32, device=device()) if isinstance(sizes, tuple) else sizes
    back = adapter(name).all_gather_variable_dim(x, 0, given)[1]
    return str(back.dtype), back.tolist()


def in_use(name: str) -> tuple[str, bool]:
    """Which file an adapter was loaded from, and whether the core can be imported beside it."""
    return Path(adapter(name).__file__).name, attempt(core).error == ""
