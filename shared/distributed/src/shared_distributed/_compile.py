# SPDX-License-Identifier: MIT
"""torch.compile: what moves data is one opaque operator, so that compiled and eager ranks do the same.

Traced collectives would be others than the eager ones, and a rank that falls back to eager (each
rank recompiles for sizes of its own) would then meet its peers in different collectives.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from ._world import Group


def opaque(
    name: str, schema: str, run: Callable[..., Any], shape: Callable[..., Any], *, ordered: bool = True
) -> Callable[..., Any]:
    """`run` as an operator that torch.compile does not look into; `shape` gives its result's shape.

    Both take the process group last, which the operator itself takes by its name. Its namespace is this
    module's own name, so that several vendored copies live in one process. Where torch has no such thing
    yet (before 2.4), `run` itself: there is nothing to compile with.

    Ordered operators all run, in the order written, whatever a rank's compiler makes of the rest.
    """
    if not hasattr(torch.library, "custom_op"):
        return run

    def by_group_name(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: function(*args[:-1], _group_from_name(args[-1]))

    namespace = __name__.replace(".", "_")
    operator = torch.library.custom_op(f"{namespace}::{name}", by_group_name(run), mutates_args=(), schema=schema)
    if not ordered or not hasattr(operator, "register_effect"):
        operator.register_fake(by_group_name(shape))
    else:
        operator.register_effect(torch.library.EffectType.ORDERED)
        operator.register_fake(lambda *args: (_keep_order(operator._opoverload), by_group_name(shape)(*args))[1])
    return lambda *args: operator(*args[:-1], "" if args[-1] is None else args[-1].group_name)


def _group_from_name(name: str) -> Group:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name) if name else None  # type: ignore[arg-type]


@lru_cache
def _keep_order(overload: Any) -> None:
    """Inductor lowers an ordered operator to a kernel whose order it then loses: it files it under a buffer's name,
    and looks under an operation's (until torch 2.14). The kernel made here knows its predecessor itself, and keeps that
    one's result alive: from 2.15 on, where inductor keeps the order, memory for nothing.
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
