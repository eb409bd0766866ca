# SPDX-License-Identifier: MIT
"""NCCL's rules, kept and broken, on a rank of the strict process group."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

import shared_distributed as core
from tests.support.calls import Outcome, attempt
from tests.support.gather import scatter_in_memory
from tests.support.oracle import upstream, values


def input_of(rank: int) -> Tensor:
    return values(rank, (2, 3), "float32")


def gather_list(x: Tensor, parts: list[Tensor] | None = None) -> None:
    dist.all_gather([torch.empty_like(x) for _ in range(2)] if parts is None else parts, x)


def uneven(rank: int, *, strided: bool) -> list[Tensor]:
    """Room for two and three rows of floats; strided: the first part has gaps in memory."""
    parts = list(torch.zeros(5, 3).split([2, 3]))
    return [scatter_in_memory(parts[0]), parts[1]] if strided else parts


def in_turn(calls: list[Callable[[], Any]], *, backwards: bool) -> None:
    for call in reversed(calls) if backwards else calls:
        call()


def break_rule(rule: str, rank: int) -> Any:
    """What rank 1 of two does wrong, while rank 0 keeps to the rule."""
    wrong, x = rank == 1, input_of(rank)
    ones = torch.ones(4)
    match rule:
        case "non-contiguous input":
            return gather_list(scatter_in_memory(x) if wrong else x)
        case "non-contiguous output":
            out = torch.empty(4, 3)
            return dist.all_gather_single(scatter_in_memory(out) if wrong else out, x)
        case "non-contiguous part of an uneven list":
            return gather_list(values(rank, (rank + 2, 3), "float32"), uneven(rank, strided=wrong))
        case "non-contiguous part of an uneven sum":
            return dist.reduce_scatter(torch.empty(rank + 2, 3), uneven(rank, strided=wrong))
        case "non-contiguous sum":
            whole = torch.ones(4, 3)
            return dist.reduce_scatter_single(torch.empty(2, 3), scatter_in_memory(whole) if wrong else whole)
        case "expanded":
            return dist.all_reduce(torch.ones(1).expand(4) if wrong else ones)
        case "lazily negated":
            imaginary = torch.ones(4, dtype=torch.complex64).conj().imag
            return gather_list(imaginary.as_strided((4,), (1,)) if wrong else ones)
        case "sparse":
            return dist.all_reduce(ones.to_sparse() if wrong else ones)
        case "int16" | "uint16":
            return gather_list(x.to(getattr(torch, rule) if wrong else torch.int32))
        case "sum of complex numbers":
            return dist.reduce_scatter_single(
                torch.empty(2, dtype=torch.complex64), torch.ones(4, dtype=torch.complex64)
            )
        case "sum of fp8":
            return dist.all_reduce(ones.to(torch.float8_e4m3fn))
        case "bitwise":
            return dist.all_reduce(torch.ones(4, dtype=torch.int32), op=dist.ReduceOp.BAND)
        case "numel":
            return dist.all_reduce(torch.ones(5 if wrong else 4))
        case "numels of a list":
            rows = [2, 4] if wrong else [2, 3]
            return gather_list(torch.ones(rows[rank], 3), [torch.empty(n, 3) for n in rows])
        case "no room":
            return dist.all_gather_single(torch.empty(5 if wrong else 4, 3), x)
        case "own place":
            return gather_list(torch.ones(9 if wrong else 6), [torch.empty(6), torch.empty(6)])
        case "dtype by rank":
            return dist.all_reduce(ones.to(torch.int32) if wrong else ones)
        case "order":
            return in_turn([lambda: dist.all_reduce(ones), lambda: gather_list(ones)], backwards=wrong)
        case "root":
            return dist.broadcast(ones, src=rank)
        case "barrier":
            return dist.barrier() if wrong else dist.all_reduce(ones)
    raise LookupError(rule)


def broken(rule: str) -> tuple[Outcome, list[float]]:
    """A broken rule, and then a call in the same group that keeps to all of them."""
    rank = dist.get_rank()
    outcome = attempt(lambda: break_rule(rule, rank))
    total = torch.ones(2)
    dist.all_reduce(total)
    return outcome, total.tolist()


def lacking(name: str) -> Outcome:
    """Something that gloo has and NCCL has not, or that is not carried."""
    t, parts = torch.ones(2), [torch.ones(2), torch.ones(2)]
    calls: dict[str, Callable[[], Any]] = {
        "recv_anysource": lambda: dist.recv(t),
        "monitored_barrier": dist.monitored_barrier,
        "allgather_coalesced": lambda: dist.group.WORLD.allgather_coalesced([parts], [t]),  # type: ignore[union-attr]
        "all_to_all_single": lambda: dist.all_to_all_single(t, t.clone()),
        "send": lambda: dist.send(t, dst=1 - dist.get_rank()),
    }
    return attempt(calls[name])


def kept(sizes: tuple[int, ...]) -> dict[str, Any]:
    """Every operation that is carried, within the rules."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine, gathered = values(rank, (sizes[rank], 2), "float32"), torch.zeros(sum(sizes), 2)
    dist.all_gather(list(gathered.split(sizes)), mine)
    fp8 = values(rank, (3,), "float8_e4m3fn")
    rows = [scatter_in_memory(torch.zeros(3)).to(torch.float8_e4m3fn) for _ in range(world)]
    dist.all_gather(rows, fp8)  # even lists may have gaps in memory
    single = torch.zeros(world, 2, 3)
    dist.all_gather_single(single, values(rank, (2, 3), "float32"))
    own = torch.zeros(sizes[rank], 2)
    dist.reduce_scatter(own, list(upstream(rank, (sum(sizes), 2), "float32").split(sizes)))
    even = torch.zeros(2)
    dist.reduce_scatter_single(even, upstream(rank, (2 * world,), "float32"))
    total, root = upstream(rank, (4,), "float32"), values(rank, (3,), "int64")
    dist.all_reduce(total)
    dist.broadcast(root, src=world - 1)
    return {"list": gathered, "fp8": rows, "single": single, "own": own, "even": even, "total": total, "root": root}


def early_look() -> tuple[list[float], list[float]]:
    """What an output holds before and after `wait`."""
    t = torch.ones(2)
    work = dist.all_reduce(t, async_op=True)
    before = t.tolist()
    work.wait()
    return before, t.tolist()


# ------------------------------------------------------------------ the core and the way of the originals, over it


def operations(sizes: tuple[int, ...]) -> tuple[list[str], list[str]]:
    """What reaches the group in a gather whose sizes are not given, and in its summed backward."""
    group: Any = dist.group.WORLD
    group.log.clear()
    x = values(dist.get_rank(), (sizes[dist.get_rank()], 2), "float32").requires_grad_()
    gathered, _ = core.all_gather(x)
    forward = list(group.log)
    group.log.clear()
    gathered.sum().backward()
    return forward, list(group.log)


def pad_and_gather(x: Tensor, dim: int) -> Tensor:
    """The naive way: pad to the longest rank, gather, drop the padding."""
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([x.shape[dim]]))
    missing = int(max(sizes)) - x.shape[dim]
    if missing:  # the longest rank's tensor goes as it is
        x = functional.pad(x, (0, 0) * (x.ndim - 1 - dim) + (0, missing))
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in sizes]
    dist.all_gather(parts, x)
    return torch.cat([part.narrow(dim, 0, int(n)) for part, n in zip(parts, sizes, strict=True)], dim)


def gathered_by(how: str, contiguous: bool) -> Outcome:
    """A ragged gather, along dim 1, of a tensor that lies well or scattered in memory."""
    rank = dist.get_rank()
    x = values(rank, (2, rank + 1), "float32")
    x = x if contiguous else scatter_in_memory(x)
    return attempt(lambda: pad_and_gather(x, 1) if how == "pad and gather" else core.all_gather(x, 1)[0])
