# SPDX-License-Identifier: MIT
"""torch.compile: what ranks do together is an opaque operator, so that compiled and eager ranks do the same.

Traced collectives would differ from the eager ones, and a rank that falls back to eager would not meet the others.
"""

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._blocks import resized
from ._choose import ranks_for_headers, ranks_for_rows
from ._containers import traceable
from ._layout import ints_of
from ._ranks import _graph_break as _always_break
from ._ranks import _is_compiling
from ._together import agree_on_all
from ._usable import refuse_tracing

# torch 2.4 to 2.10 have operators too, but fail with summed gradients or without sizes: there a gather breaks the graph
IN_ONE_GRAPH = hasattr(torch.library, "EffectType") and torch.__version__ >= "2.11"  # compared as versions, not as text


def _graph_break(function: Callable[..., Any]) -> Callable[..., Any]:
    """Only where a gather cannot be an operator."""
    return function if IN_ONE_GRAPH else _always_break(function)


def agree(
    operation: str,
    xs: list[Any],
    dim: Any,
    sizes: Any,
    summed: bool,
    group: Any = None,
    *,
    check: bool = False,
    problem: str = "",
) -> tuple[Any, list[Tensor], int, Any]:
    """The ranks, the tensors to gather, their dim counted from the front, and every rank's size along it."""
    if IN_ONE_GRAPH and _is_compiling():
        return _agree_while_tracing(operation, xs, dim, sizes, summed, group, check, problem)
    if not dist.is_available():
        raise RuntimeError("there is no process group: this torch was built without torch.distributed")
    refuse_tracing()
    # rows are not sent where sizes are given and checked: compiled ranks take two rounds there
    ranks = ranks_for_headers(group, xs if sizes is None else [], dim)
    xs, sizes = agree_on_all(ranks, operation, xs, dim, sizes, summed, check=check, problem=problem)
    return ranks_for_rows(ranks, xs[0].device), xs, dim % xs[0].ndim, sizes


def _agree(operation: str, x: Any, dim: int, sizes: Any, summed: bool = False) -> tuple[Any, Tensor, int, Any]:
    """As the heart's, in the package's ways."""
    xs, problem = traceable([x], "")
    ranks, (x,), dim, sizes = agree(operation, xs, dim, sizes, summed, problem=problem)
    return ranks, x, dim, sizes


class TracedRanks:
    """The ranks while torch.compile traces: every step is an operator."""

    def __init__(self, group: Any, has_agreed: bool) -> None:
        self.group = group
        self.has_agreed = has_agreed  # just before, in an operator: rows may have come
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.later: TracedRanks = TracedRanks(group, False) if has_agreed else self  # in derivatives

    def gather(self, x: Tensor, dim: int, sizes: Any) -> Tensor:
        """`(… n_r …) -> (… sum(n) …)`."""
        return _gather_operator(x, self.has_agreed, dim, sizes, self.group)

    def sum(self, x: Tensor, dim: int, sizes: Any) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`."""
        return _sum_operator(x, dim, sizes, self.group)

    def swap(self, x: Tensor, dim: int, sent: Any, received: Any) -> Tensor:
        """`(… sum(sent) …) -> (… sum(received) …)`."""
        return _swap_operator(x, self.has_agreed, dim, sent, received, self.group)


def _agree_while_tracing(
    operation: str, xs: list[Any], dim: Any, sizes: Any, summed: bool, group: Any, check: bool, problem: str
) -> tuple[Any, list[Tensor], int, Any]:
    """No input is replaced here: if only some ranks want a gradient, that is an error on every rank."""
    if not isinstance(dim, int):  # operators take nothing else; the error is raised when the graph runs, on every rank
        dim, problem = 0, problem or f"dim {dim!a} is not an integer"
    given = None if sizes is None else list(ints_of(sizes))
    wants = [x.requires_grad and torch.is_grad_enabled() for x in xs]
    found = _agree_operator([x.detach() for x in xs], wants, operation, problem, check, summed, dim, given, group)
    ranks = TracedRanks(group, given is None)
    dim = _within(xs[0], dim) if xs else dim
    if given is not None and not isinstance(sizes, Tensor):
        return ranks, xs, dim, tuple(_of_length(given, ranks.world))
    agreed = found.tolist() if given is None else _of_length(given, ranks.world)
    for size in agreed:  # the compiler knows nothing of these numbers yet
        torch._check(size >= 0)
    if xs and xs[0].ndim:
        agreed[ranks.rank] = xs[0].shape[dim]  # equal, or the operator raises
    return ranks, xs, dim, tuple(agreed)


def _of_length(sizes: list[int], world: int) -> list[int]:
    """As many sizes as there are ranks; if they were not, the operator raises."""
    return [*sizes, *[0] * world][:world]


def _within(x: Tensor, dim: int) -> int:
    """Counted from the front; out of range, the operator raises."""
    return dim % max(x.ndim, 1)


_latest = threading.local()  # the ranks of this thread's latest agreement in an operator, with the rows that came


def _agree_in_operator(
    xs: list[Tensor],
    wants: list[bool],
    operation: str,
    problem: str,
    check: bool,
    summed: bool,
    dim: int,
    sizes: Any,
    group: Any,
) -> Tensor:
    with torch.enable_grad():
        xs = [x.detach().requires_grad_(want) for x, want in zip(xs, wants, strict=True)]
        ranks = ranks_for_headers(group, xs if sizes is None else [], dim)
        _, sizes = agree_on_all(ranks, operation, xs, dim, sizes, summed, check=check, problem=problem, can_join=False)
    _latest.ranks = ranks
    return torch.tensor(sizes, device="cpu")


def _gather_in_operator(x: Tensor, has_agreed: bool, dim: int, sizes: Any, group: Any) -> Tensor:
    ranks = _latest.ranks if has_agreed else ranks_for_headers(group, [x], dim)
    return ranks_for_rows(ranks, x.device).gather(x, dim, sizes)


def _sum_in_operator(x: Tensor, dim: int, sizes: Any, group: Any) -> Tensor:
    return ranks_for_rows(ranks_for_headers(group, [x], dim), x.device).sum(x, dim, sizes)


def _swap_in_operator(x: Tensor, has_agreed: bool, dim: int, sent: Any, received: Any, group: Any) -> Tensor:
    ranks = _latest.ranks if has_agreed else ranks_for_headers(group, [x], dim)
    return ranks_for_rows(ranks, x.device).swap(x, dim, sent, received)


def _shape_of_swapped(x: Tensor, has_agreed: bool, dim: int, sent: Any, received: Any, group: Any) -> Tensor:
    return x.new_empty(resized(x, dim, sum(received)))


def _shape_of_sizes(*arguments: Any) -> Tensor:
    return torch.empty(dist.get_world_size(arguments[-1]), dtype=torch.long, device="cpu")


def _shape_of_gathered(x: Tensor, has_agreed: bool, dim: int, sizes: Any, group: Any) -> Tensor:
    return x.new_empty(resized(x, dim, sum(sizes)))


def _shape_of_sum(x: Tensor, dim: int, sizes: Any, group: Any) -> Tensor:
    return x.new_empty(resized(x, dim, sizes[dist.get_rank(group)]))


def operator(name: str, schema: str, run: Callable[..., Any], shape: Callable[..., Any]) -> Callable[..., Any]:
    """`run` as an operator that torch.compile does not look into; `shape` gives its result's shape.

    Both take the process group last; the operator itself takes the group's name. The compiler neither drops nor
    reorders these operators.
    """
    if not IN_ONE_GRAPH:
        return run

    def run_by_name(*arguments: Any) -> Any:
        return run(*arguments[:-1], _group_of_name(arguments[-1]))

    def fake(*arguments: Any) -> Any:
        _keep_order(custom._opoverload)
        return shape(*arguments[:-1], _group_of_name(arguments[-1]))

    def call(*arguments: Any) -> Any:
        group = arguments[-1]
        return custom(*arguments[:-1], "" if group is None else group.group_name)

    custom = torch.library.custom_op(f"shared_distributed::{name}", run_by_name, mutates_args=(), schema=schema)
    custom.register_fake(fake)
    custom.register_effect(torch.library.EffectType.ORDERED)
    return call


def _group_of_name(name: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name) if name else None


@lru_cache
def _keep_order(overload: Any) -> None:
    """Inductor loses an ordered operator's order until torch 2.14: it files it under a buffer's name and looks under
    an operation's. The kernel made here knows its predecessor itself, and keeps that one's result alive.
    """
    if torch.__version__ >= "2.15":  # compared as versions, not as text
        return
    from torch._inductor import ir
    from torch._inductor.lowering import register_lowering
    from torch.utils._pytree import tree_map_only

    @register_lowering(overload, type_promotion_kind=None)
    def lower(*args: Any) -> Any:
        created = ir.EffectfulKernel.create(overload, *args)
        return tree_map_only(ir.IRNode, lambda node: node.wrap_for_lowering(), created)


_agree_operator = operator(
    "agree",
    "(Tensor[] xs, bool[] wants, str operation, str problem, bool check, bool summed, int dim, SymInt[]? sizes, "
    "str group) -> Tensor",
    _agree_in_operator,
    _shape_of_sizes,
)
_gather_operator = operator(
    "gather",
    "(Tensor x, bool has_agreed, int dim, SymInt[] sizes, str group) -> Tensor",
    _gather_in_operator,
    _shape_of_gathered,
)
_swap_operator = operator(
    "swap",
    "(Tensor x, bool has_agreed, int dim, SymInt[] sent, SymInt[] received, str group) -> Tensor",
    _swap_in_operator,
    _shape_of_swapped,
)
_sum_operator = operator(
    "sum", "(Tensor x, int dim, SymInt[] sizes, str group) -> Tensor", _sum_in_operator, _shape_of_sum
)
