# SPDX-License-Identifier: MIT
"""What only the core offers: groups, its adjoint, every dtype, forced transports, counted collectives."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.adapters.sound import low_precision_gradient
from tests.support.gather import gather_by, make_input, run_case
from tests.support.oracle import Case, Result, upstream, values
from tests.support.world import device, place

fast = importlib.import_module("shared_distributed._fast")

DENSE = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex32",
    "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz",
]  # fmt: skip


# ------------------------------------------------------------------ watching the process group

COLLECTIVES = (
    "all_to_all_single", "all_gather", "gather", "broadcast", "all_reduce", "reduce_scatter", "isend", "irecv",
)  # fmt: skip


@contextmanager
def watched() -> Iterator[list[tuple[str, int, int]]]:
    """Every collective entered meanwhile, with its bytes; each tensor handed over must be contiguous."""
    calls: list[tuple[str, int, int]] = []
    originals = {name: getattr(dist, name) for name in COLLECTIVES}

    def watch(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            flat = [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(t, Tensor)]
            assert all(t.is_contiguous() for t in flat), f"{name} was handed a non-contiguous tensor"
            nbytes = [t.numel() * t.element_size() for t in flat]
            calls.append((name, nbytes[-1], sum(nbytes[:-1])))
            return original(*args, **kwargs)

        return wrapper

    for name, original in originals.items():
        setattr(dist, name, watch(name, original))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


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


# ------------------------------------------------------------------ transports, one by one


@contextmanager
def forced(gather: str, total: str, small: int) -> Iterator[None]:
    """Only the named transports, with `small` as the border between small and large."""
    saved, backend = (fast.TRANSPORTS, fast._SMALL), place().backend
    ways = fast.TRANSPORTS[backend]._replace(gather=getattr(fast, gather), total=getattr(fast, total))
    fast.TRANSPORTS, fast._SMALL = {backend: ways}, small
    try:
        yield
    finally:
        fast.TRANSPORTS, fast._SMALL = saved


def run_forced(gather: str, total: str, small: int, cases: list[Case]) -> list[Result]:
    with forced(gather, total, small):
        return [run_case(gather_by("core sum"), case) for case in cases]


# ------------------------------------------------------------------ dtypes, layouts, adjoint


def every_dtype(sizes: tuple[int, ...]) -> dict[str, bool]:
    """Bytes in, the same bytes out, for each dense dtype."""
    rank, seen = dist.get_rank(), {}
    for name in [name for name in DENSE if hasattr(torch, name)]:
        dtype = getattr(torch, name)
        size = torch.empty(0, dtype=dtype).element_size()
        parts = [
            ((torch.arange(n * 3 * size) * 7 + 31 * r) % (2 if name == "bool" else 251)).to(torch.uint8).view(-1)
            for r, n in enumerate(sizes)
        ]
        mine = parts[rank].to(device()).view(dtype).view(sizes[rank], 3)
        gathered, _ = core.all_gather(mine)
        seen[name] = gathered.dtype == dtype and torch.equal(
            gathered.contiguous().view(-1).view(torch.uint8).cpu(), torch.cat(parts)
        )
    return seen


def conjugated() -> tuple[list[complex], list[complex]]:
    """A lazily conjugated and a lazily negated view, gathered."""
    rank = dist.get_rank()
    z = values(rank, (rank + 1,), "complex64").to(device())
    return core.all_gather(z.conj())[0].tolist(), core.all_gather(z.conj().imag)[0].tolist()


def scattered(sizes: tuple[int, ...], dim: int, dtype: str) -> Tensor:
    """This rank's part of the sum."""
    shape = [2, 3]
    shape[dim] = sum(sizes)
    return core.reduce_scatter(upstream(dist.get_rank(), shape, dtype).to(device()), dim, sizes=sizes)


def low_precision_sum(gather: str, total: str, small: int) -> list[float]:
    """As in `ranks.sound`, over the named transports only."""
    with forced(gather, total, small):
        return low_precision_gradient("core sum", "bfloat16", 256.0)


def lazy_sum(sizes: tuple[int, ...], dim: int) -> list[Tensor]:
    """This rank's part of the sum of lazily conjugated, and of lazily negated tensors, strided and contiguous."""
    shape = [2, 3]
    shape[dim] = sum(sizes)
    z = upstream(dist.get_rank(), shape, "complex64").to(device())
    lazy = [z.conj(), z.conj().imag, torch._neg_view(z.imag.contiguous())]
    assert [t.is_neg() for t in lazy] == [False, True, True]
    return [core.reduce_scatter(t, dim, sizes=sizes) for t in lazy]


def skewed_sum(sizes: tuple[int, ...], columns: int, dtype: str) -> bool:
    """A sum of which one rank owns nearly all; whether this rank's part is right."""
    rank, shape = dist.get_rank(), (sum(sizes), columns)
    mine = core.reduce_scatter(upstream(rank, shape, dtype).to(device()), sizes=sizes)
    wide = torch.float32 if mine.is_floating_point() and mine.element_size() < 4 else mine.dtype
    whole = sum(upstream(r, shape, dtype).to(wide) for r in range(len(sizes)))
    return torch.equal(mine.cpu(), whole.to(mine.dtype).split(sizes)[rank])


# ------------------------------------------------------------------ groups


def in_forced_subgroup(members: list[int], gather: str, total: str, small: int) -> Any:
    """The same, over the named transports only."""
    with forced(gather, total, small):
        return in_subgroup(members)


def in_subgroup(members: list[int]) -> Any:
    """A gather among some ranks only; what the group's ranks see."""
    rank, group = dist.get_rank(), dist.new_group(members)
    if rank not in members:
        try:
            core.all_gather(torch.ones(1, device=device()), group=group)
        except core.BadInputError as error:
            return str(error)
        return "no error"
    position = members.index(rank)
    x = torch.full((position + 1, 2), float(rank), device=device(), requires_grad=True)
    gathered, sizes = core.all_gather(x, group=group)
    weight = torch.arange(1.0, len(gathered) + 1, device=device()).unsqueeze(1) * (position + 1)
    (gathered * weight).sum().backward()
    assert x.grad is not None
    y = x.detach().requires_grad_()
    local, _ = core.AllGather(grad="local", group=group)(y)
    (local * weight).sum().backward()
    assert y.grad is not None
    return {
        "gathered": gathered[:, 0].tolist(),
        "sizes": sizes,
        "gradient": x.grad[:, 0].tolist(),
        "local": torch.equal(local, gathered),
        "local gradient": y.grad[:, 0].tolist(),
        "rows": (sizes.rows.start, sizes.rows.stop),
        "scattered": core.reduce_scatter(torch.ones(sum(sizes), device=device()), sizes=sizes, group=group).tolist(),
    }


def more_in_subgroup(members: list[int]) -> Any:
    """Containers, asynchronous gathers, second derivatives and errors among some ranks only."""
    from tests.support.calls import attempt

    rank, group, alone = dist.get_rank(), dist.new_group(members), [dist.new_group([r]) for r in range(4)]
    if rank not in members:
        return None
    position = members.index(rank)
    x = torch.full((position + 1,), float(rank), device=device(), requires_grad=True)
    (a, b), sizes = core.all_gather_async((x, 2 * x), group=group).wait()
    loss = (a * b).sum() if position == 1 else (a + b).sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad((position + 1) * first.sum(), x)
    clash = attempt(lambda: core.all_gather(x.double() if position == 1 else x, group=group))
    return {
        "gathered": (a.tolist(), b.tolist(), sizes),
        "derivatives": (first.tolist(), second.tolist()),
        "clash": clash,
        "distributed": (core.is_distributed(), core.is_distributed(group), core.is_distributed(alone[rank])),
        "alone": core.all_gather(x, group=alone[rank])[0] is x,
    }


# ------------------------------------------------------------------ several tensors, and asynchronously


class Parts(NamedTuple):
    embeddings: Tensor
    labels: Tensor
    other: Tensor


def parts_of_a_batch(rank: int, rows: int) -> dict[str, Tensor]:
    """Embeddings, labels and a mask: one number of rows, three dtypes, two ranks of tensor."""
    return {
        "embeddings": values(rank, (rows, 3), "float32"),
        "labels": values(rank, (rows,), "int64"),
        "other": values(rank + 1, (rows, 2, 2), "float64"),
    }


def several(sizes: tuple[int, ...]) -> dict[str, Any]:
    """A dict, a list and a tuple of tensors; collectives of the dict's gather; gradients of two of its parts."""
    rank = dist.get_rank()
    batch = {name: part.to(device()) for name, part in parts_of_a_batch(rank, sizes[rank]).items()}
    with watched() as calls_with_sizes:
        core.all_gather(batch, sizes=sizes)
    batch["embeddings"].requires_grad_()
    if rank == 0:
        batch["other"].requires_grad_()  # the other ranks stand in
    with watched() as calls:
        gathered, found = core.all_gather(batch)
    loss = (rank + 1) * gathered["embeddings"].sum()
    if rank == 1:  # only one rank's loss looks at this part
        loss = loss + 5 * gathered["other"].sum()
    loss.backward()
    listed, _ = core.all_gather(list(batch.values()))
    paired, _ = core.all_gather(Parts(*batch.values()), grad="local")
    return {
        "gathered": {name: t.detach() for name, t in gathered.items()},
        "sizes": found,
        "calls": ([name for name, *_ in calls], [name for name, *_ in calls_with_sizes]),
        "containers": (type(gathered).__name__, type(listed).__name__, type(paired).__name__),
        "equal": all(
            torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(gathered.values(), listed, paired, strict=True)
        ),
        "requires_grad": [t.requires_grad for t in gathered.values()],
        "gradients": [batch["embeddings"].grad, batch["other"].grad],
    }


def some_tensors_want_a_gradient(wants: list[list[bool]]) -> list[bool]:
    """Which of several gathered tensors carry a gradient, where each rank wants it of tensors of its own."""
    rank = dist.get_rank()
    rows = torch.ones(rank + 1, device=device())
    gathered, _ = core.all_gather([rows.clone().requires_grad_(want) for want in wants[rank]])
    return [tensor.requires_grad for tensor in gathered]


def containers() -> list[bool]:
    """Whether each kind of container comes back as itself."""
    x = torch.ones(dist.get_rank() + 1, device=device())
    kinds: list[Any] = [[x], (x,), (x, x), {"a": x}, Parts(x, x, x)]
    return [type(core.all_gather(batch)[0]) is type(batch) for batch in kinds]


def modules_gradient(grad: str) -> list[float]:
    """The gradient through the core's module, on the default group."""
    rank = dist.get_rank()
    x = torch.ones(rank + 1, device=device(), requires_grad=True)
    gathered, _ = core.AllGather(grad=grad)(x)  # type: ignore[arg-type]
    (gathered * (rank + 1)).sum().backward()
    return list(x.grad.tolist())  # type: ignore[union-attr]


def dicts_in_other_orders() -> dict[str, Any]:
    """Two tensors of one shape, in a dict that one rank fills the other way round."""
    rank = dist.get_rank()
    batch = {key: torch.full((1, 2), start + rank, device=device()) for key, start in (("a", 0.0), ("b", 10.0))}
    a, b = (t.requires_grad_() for t in batch.values())
    gathered, _ = core.all_gather({"b": b, "a": a} if rank == 1 else {"a": a, "b": b})
    ((rank + 1) * (gathered["a"].sum() + 10 * gathered["b"].sum())).backward()
    values = {key: t.tolist() for key, t in gathered.items()}
    return {"order": list(gathered), **values, "gradients": [t.grad.tolist() for t in (a, b)]}


def several_that_clash(how: str) -> Any:
    from tests.support.calls import attempt

    rank = dist.get_rank()
    a, b = torch.ones(rank + 1, 2, device=device()), torch.ones(rank + 1, 3, device=device())
    if how == "sizes" and rank:
        b = torch.ones(7, 3, device=device())
    if how == "second dtype" and rank:
        b = b.double()
    if how == "second shape" and rank:
        b = torch.ones(rank + 1, 4, device=device())
    if how == "count" and rank:
        return attempt(lambda: core.all_gather([a])[1])
    if how == "empty" and rank:
        return attempt(lambda: core.all_gather([])[1])
    if how == "keys":
        return attempt(lambda: core.all_gather({"a": a, "c" if rank else "b": b})[1])
    if how == "one key":
        return attempt(lambda: core.all_gather({"b" if rank else "a": a})[1])
    if how == "one more":
        return attempt(lambda: core.all_gather([a.requires_grad_()] * (62 if rank else 61))[1])
    if how == "a list in a dict":
        return attempt(lambda: core.all_gather({"a": a, "b": [b] if rank else b})[1])
    return attempt(lambda: core.all_gather([a, b])[1])


def a_hundred_tensors() -> tuple[list[list[float]], list[float | None]]:
    """What is gathered of each, and the gradient, in whole rows, of those that this rank wants one of."""
    rank = dist.get_rank()
    xs = [torch.full((rank + 1,), i + rank / 2, device=device()) for i in range(100)]
    for i, x in enumerate(xs):
        x.requires_grad_(i % 2 == rank or i == 99)
    gathered, _ = core.all_gather(xs)
    sum((rank + 1) * (i + 1) * y.sum() for i, y in enumerate(gathered)).backward()
    return [y.tolist() for y in gathered], [None if x.grad is None else x.grad[0].item() for x in xs]


def asynchronously(rows: int) -> dict[str, Any]:
    """Two gathers started before either is waited for, the second one first; with gradients."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [rows * (r + 1) for r in range(world)]
    x = values(rank, (sizes[rank], 2), "float32").to(device()).requires_grad_()
    y = values(rank + 7, (sizes[rank], 3), "float32").to(device())
    first, second = core.all_gather_async(x, sizes=sizes), core.all_gather_async(y, sizes=sizes)
    (b, _), (a, found) = second.wait(), first.wait()
    (gradient,) = torch.autograd.grad((a * (rank + 1)).sum(), x)
    expected_a = torch.cat([values(r, (n, 2), "float32") for r, n in enumerate(sizes)])
    expected_b = torch.cat([values(r + 7, (n, 3), "float32") for r, n in enumerate(sizes)])
    return {
        "values": torch.equal(a.cpu(), expected_a) and torch.equal(b.cpu(), expected_b),
        "sizes": found == tuple(sizes),
        "gradient": bool((gradient == sum(range(1, world + 1))).all()),
        "requires_grad": (a.requires_grad, b.requires_grad),
    }


def peak_over_output(dim: int) -> float:
    """The most that a gather allocates at one time, over the size of its output; 4 MiB a rank."""
    from bench.measure import peak_bytes

    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [1024 * (r + 1) for r in range(world)]
    shape = [4, 1024]
    shape[dim] = sizes[rank] * (1 if dim == 0 else 4)
    sizes = [n * (1 if dim == 0 else 4) for n in sizes]
    shape[1 - dim] = 1024 if dim == 0 else 256
    x = torch.zeros(shape)
    core.all_gather(x, dim, sizes=sizes)  # whatever is made once is made here
    output = sum(sizes) * shape[1 - dim] * 4
    return peak_bytes(lambda: core.all_gather(x, dim, sizes=sizes)) / output
