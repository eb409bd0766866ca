# SPDX-License-Identifier: MIT
"""The world: what there is before any call."""

import warnings
from functools import cache, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)  # torch 2.0 has none
_warn_once = cache(warnings.warn)


def _graph_break(method: Any) -> Any:
    """A method that torch.compile never looks into, so that a compiled rank does in it what the others do."""
    return wraps(method)(lambda *a, **kw: (torch.compiler.disable(method) if _is_compiling() else method)(*a, **kw))


def _has_shape(x: Any) -> bool:  # nested tensors and lazy parameters have none
    return isinstance(x, Tensor) and not (x.is_nested or hasattr(x, "materialize"))


def _is_distributed(group: Any = None) -> bool:
    """Whether there is a process group with more than one rank."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def _long_tensor(ints: Any, device: torch.device) -> Tensor:
    """A LongTensor, made without waiting for its device."""
    pinned = device.type == "cuda" and torch.cuda.is_available()
    return torch.tensor(ints, dtype=torch.long, device="cpu", pin_memory=pinned).to(device, non_blocking=True)
