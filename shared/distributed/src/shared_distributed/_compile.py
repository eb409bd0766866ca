# SPDX-License-Identifier: MIT
"""torch.compile: what moves data is one opaque operator, so that compiled and eager ranks do the same.

Traced collectives would be others than the eager ones, and a rank that falls back to eager (each
rank recompiles for sizes of its own) would then meet its peers in different collectives.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ProcessGroup


def opaque(name: str, schema: str, run: Callable[..., Any], shape: Callable[..., Any]) -> Callable[..., Any]:
    """`run` as an operator that torch.compile does not look into; `shape` gives its result's shape.

    Its namespace is this module's own name, so that several vendored copies live in one process.
    Where torch has no such thing yet (before 2.4), `run` itself: there is nothing to compile with.
    """
    if not hasattr(torch.library, "custom_op"):
        return run
    namespace = __name__.replace(".", "_")
    operator = torch.library.custom_op(f"{namespace}::{name}", run, mutates_args=(), schema=schema)
    operator.register_fake(shape)
    return operator


def name_of_group(group: ProcessGroup | None) -> str:
    """A group as an operator can take it; the default group has no name here."""
    return "" if group is None else group.group_name


def group_from_name(name: str) -> ProcessGroup | None:
    """The group of a name."""
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name) if name else None  # type: ignore[arg-type]
