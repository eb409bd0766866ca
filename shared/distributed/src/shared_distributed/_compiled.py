# SPDX-License-Identifier: MIT
"""torch.compile: what ranks do together is an opaque operator, so that compiled and eager ranks do the same.

Traced collectives would be others than the eager ones, and a rank that falls back to eager would not meet its peers.
"""

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._differentiate import _Move
from ._errors import BadInputError
from ._fast import FastCall
from ._layout import ints_of
from ._world import _is_compiling

# torch 2.4 to 2.10 have operators too, but fail with summed gradients or without sizes: there it is a graph break
_WHOLE = hasattr(torch.library, "EffectType") and torch.__version__ >= "2.11"  # compared as versions, not as text
if _WHOLE:
    _Move.forward = staticmethod(_Move.forward.__wrapped__)  # type: ignore[method-assign]


class _Call(FastCall):
    """A call whose three steps are operators while torch.compile traces it."""

    is_agreed = False

    def agree(self, op: str, *xs: Any, check: bool = False) -> tuple[Any, ...]:
        """Eager: the heart's. Compiled, no input is replaced: if only some ranks want a gradient, all are told."""
        if not (_WHOLE and _is_compiling()):
            return super().agree(op, *xs, check=check)
        if not isinstance(self.dim, int):  # operators take nothing else
            problem = BadInputError(f"dim {self.dim!a} is not an integer")
            return _Call(0, self.sizes, self.summed, self.group).agree(op, problem, *xs, check=check)
        problem = "".join([x.args[0] for x in xs if isinstance(x, Exception)][:1])
        xs = tuple(x for x in xs if not isinstance(x, Exception))
        given = None if self.sizes is None else list(ints_of(self.sizes))
        wants = [x.requires_grad and torch.is_grad_enabled() for x in xs]
        found = _agree_operator([x.detach() for x in xs], wants, op, problem, check, *self._replace(sizes=given))
        agreed = found.tolist() if given is None else [*given, *[0] * len(found)][: len(found)]  # too few: raises there
        if (given is None or isinstance(self.sizes, Tensor)) and xs and xs[0].ndim:
            for n in agreed:  # the compiler knows nothing of these numbers yet
                torch._check(n >= 0)
            rank, own = dist.get_rank(self.group), xs[0].shape[self.dim % xs[0].ndim]
            agreed[rank] = own  # equal, or it raises there
        return (_Agreed if given is None else _Call)(self.dim, tuple(agreed), self.summed, self.group), *xs

    def gather(self, x: Tensor) -> Tensor:
        """`(… n_r …) -> (… sum(n) …)`."""
        if not (_WHOLE and _is_compiling()):
            return super().gather(x)
        return _gather_operator(x, self.is_agreed, *self)

    def sum(self, x: Tensor) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`."""
        if not (_WHOLE and _is_compiling()):
            return super().sum(x)
        return _sum_operator(x, *self)


class _Agreed(_Call):
    """A call whose rows may have come with the sizes, just before."""

    is_agreed = True  # of the class: torch.compile loses what is set on a tuple where a graph breaks


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
        is_header = len(ints) == 3  # digest, size, flags
        return super().exchange([*ints[:2], ints[2] & ~1] if is_header else ints, xs)


_latest = threading.local()  # what came for this thread's latest call that agreed in an operator


def _agreed_sizes(xs: list[Tensor], wants: list[bool], op: str, problem: str, check: bool, *call: Any) -> Tensor:
    told: list[Any] = [BadInputError(problem)] if problem else []
    with torch.enable_grad():
        told += [x.detach().requires_grad_(want) for x, want in zip(xs, wants, strict=True)]
        agreed = _InOperator(*call).agree(op, *told, check=check)[0]
        _latest.arrived = agreed.arrived
        return torch.tensor(agreed.sizes, device="cpu")


def _gather_in_operator(x: Tensor, is_agreed: bool, *call: Any) -> Tensor:
    agreed = FastCall(*call)
    agreed.arrived = _latest.arrived if is_agreed else []
    return agreed.gather(x)


def _resized(x: Tensor, dim: int, size: Any) -> Tensor:
    dim = dim % max(x.ndim, 1)  # out of range: `agree` raises, when it runs
    return x.new_empty((*x.shape[:dim], size, *x.shape[dim + 1 :]))


_CALL = "int dim, SymInt[]{} sizes, bool summed, str group) -> Tensor"  # as the fields of a call
_agree_operator = opaque(
    "agree",
    "(Tensor[] xs, bool[] wants, str op, str problem, bool check, " + _CALL.format("?"),
    _agreed_sizes,
    lambda *call: torch.empty(dist.get_world_size(call[-1]), dtype=torch.long, device="cpu"),
)
_gather_operator = opaque(
    "gather",
    "(Tensor x, bool is_agreed, " + _CALL.format(""),
    _gather_in_operator,
    lambda x, _, dim, sizes, *__: _resized(x, dim, sum(sizes)),
)
_sum_operator = opaque(
    "sum",
    "(Tensor x, " + _CALL.format(""),
    lambda x, *call: FastCall(*call).sum(x),
    lambda x, dim, sizes, _, group: _resized(x, dim, sizes[dist.get_rank(group)]),
)
