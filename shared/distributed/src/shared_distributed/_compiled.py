# SPDX-License-Identifier: MIT
"""torch.compile: what ranks do together is an opaque operator, so that compiled and eager ranks do the same.

Traced collectives would be others than the eager ones, and a rank that falls back to eager would not meet its peers.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._errors import BadInputError
from ._fast import FastCall
from ._world import _graph_break, _is_compiling

# torch 2.4 to 2.10 have operators too, but fail with summed gradients or without sizes: there it is a graph break
_WHOLE = hasattr(torch.library, "EffectType") and torch.__version__ >= "2.11"  # compared as versions, not as text


class _Call(FastCall):
    """A call whose three steps are operators while torch.compile traces it."""

    def agree(self, op: str, *xs: Any) -> tuple[Any, ...]:
        """Eager: the heart's. Compiled, no input is replaced: if only some ranks want a gradient, all are told."""
        if not (_WHOLE and _is_compiling()):
            return _graph_break(super().agree)(op, *xs)
        if isinstance(xs[0], Exception):
            raise xs[0]
        sizes, own = self.sizes, xs[0].shape[self.dim]
        if sizes is None:
            wants = [x.requires_grad and torch.is_grad_enabled() for x in xs]
            sizes = _agree_operator([x.detach() for x in xs], wants, op, self.dim, self.summed, self.group)
        agreed, rank = list(sizes.tolist() if isinstance(sizes, Tensor) else sizes), dist.get_rank(self.group)
        if len(agreed) != dist.get_world_size(self.group):
            raise BadInputError(f"sizes has {len(agreed)} entries for {dist.get_world_size(self.group)} ranks")
        if isinstance(sizes, Tensor):  # the compiler knows nothing of these numbers yet
            for n in agreed:
                torch._check(n >= 0)
            torch._check(agreed[rank] == own)
            agreed[rank] = own
        return self._replace(sizes=tuple(agreed)), *xs

    def gather(self, x: Tensor) -> Tensor:
        """`(… n_r …) -> (… sum(n) …)`."""
        if not (_WHOLE and _is_compiling()):
            return _graph_break(super().gather)(x)
        return _gather_operator(x, self.dim % x.ndim, list(self.sizes), self.group)

    def sum(self, x: Tensor) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`."""
        if not (_WHOLE and _is_compiling()):
            return _graph_break(super().sum)(x)
        return _sum_operator(x, self.dim % x.ndim, list(self.sizes), self.group)


def opaque(name: str, schema: str, run: Callable[..., Any], shape: Callable[..., Any]) -> Callable[..., Any]:
    """`run` as an operator that torch.compile does not look into; `shape` gives its result's shape.

    Both take the process group last, which the operator itself takes by its name. All operators run, in the order
    written, whatever a rank's compiler makes of the rest.
    """
    if not _WHOLE:
        return run

    def by_group_name(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: function(*args[:-1], _group_from_name(args[-1]))

    def fake(*args: Any) -> Any:
        _keep_order(operator._opoverload)
        return by_group_name(shape)(*args)

    operator = torch.library.custom_op(
        f"shared_distributed::{name}", by_group_name(run), mutates_args=(), schema=schema
    )
    operator.register_fake(fake)
    operator.register_effect(torch.library.EffectType.ORDERED)
    return lambda *args: operator(*args[:-1], "" if args[-1] is None else args[-1].group_name)


def _group_from_name(name: str) -> Any:
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


class _InOperator(FastCall):
    """A call that cannot join a backward for the others' sake: no input can be replaced inside an operator."""

    def exchange(self, ints: list[int], xs: Any) -> list[list[int]]:
        is_header = len(ints) == 4
        return super().exchange([*ints[:2], ints[2] & ~1, ints[3]] if is_header else ints, xs)


def _agreed_sizes(xs: list[Tensor], wants: list[bool], op: str, dim: int, summed: bool, group: Any) -> Tensor:
    with torch.enable_grad():
        xs = [x.detach().requires_grad_(want) for x, want in zip(xs, wants, strict=True)]
        return torch.tensor(_InOperator(dim, None, summed, group).agree(op, *xs)[0].sizes, device="cpu")


def _gathered(x: Tensor, dim: int, sizes: list[int], group: Any) -> Tensor:
    if x.shape[dim] != sizes[dist.get_rank(group)]:  # nobody could look before the compiled call ran
        raise BadInputError(f"sizes {tuple(sizes)} do not fit dim {dim} of shape {tuple(x.shape)}")
    return FastCall(dim, tuple(sizes), group=group).gather(x)


def _resized(x: Tensor, dim: int, size: Any) -> Tensor:
    return x.new_empty((*x.shape[:dim], size, *x.shape[dim + 1 :]))


_agree_operator = opaque(
    "agree",
    "(Tensor[] xs, bool[] wants, str op, int dim, bool summed, str group) -> Tensor",
    _agreed_sizes,
    lambda *call: torch.empty(dist.get_world_size(call[-1]), dtype=torch.long, device="cpu"),
)
_ROWS = "(Tensor x, int dim, SymInt[] sizes, str group) -> Tensor"
_gather_operator = opaque("gather", _ROWS, _gathered, lambda x, dim, sizes, group: _resized(x, dim, sum(sizes)))
_sum_operator = opaque(
    "sum",
    _ROWS,
    lambda x, dim, sizes, group: FastCall(dim, tuple(sizes), group=group).sum(x),
    lambda x, dim, sizes, group: _resized(x, dim, sizes[dist.get_rank(group)]),
)
