# SPDX-License-Identifier: MIT
"""Tensors taken out of a list, tuple or dict, and put back into another one."""

from collections import OrderedDict, defaultdict
from copy import copy
from typing import Any

import torch
from torch import Tensor

from ._ranks import _is_compiling


def unpack(operation: str, x: Any) -> tuple[str, Any, list[Any], str]:
    """The operation's name with the container's structure; the keys; the tensors; what is wrong with the container."""
    if not isinstance(x, (dict, list, tuple)):
        xs, problem = traceable([x], "")
        return operation, None, xs, problem
    if isinstance(x, dict):
        keys: Any = sorted(x, key=repr)  # ranks may have inserted them in different orders
        structure = ascii(keys)
    else:
        keys = range(len(x))
        structure = f"[{len(x)}]"
    xs = [x[key] for key in keys]
    problem = "" if xs else "expected tensors, got none"
    try:
        pack(x, keys, xs)
    except Exception as error:  # every rank raises it, before anything is sent
        problem = f"cannot make another {type(x)}: {error}"
    xs, problem = traceable(xs, problem)
    return f"{operation}{structure}", keys, xs, problem


def traceable(xs: list[Any], problem: str) -> tuple[list[Any], str]:
    """While compiling, an empty tensor for what is not one: the error is raised when the graph runs, on every rank."""
    if not _is_compiling():
        return xs, problem
    tensors = []
    for x in xs:
        if isinstance(x, Tensor):
            tensors.append(x)
        else:
            problem = problem or f"expected a dense torch.tensor, got {type(x)}"
            tensors.append(torch.empty(0, device="cpu"))
    return tensors, problem


def pack(x: Any, keys: Any, tensors: list[Any]) -> Any:
    """The tensors in a container like `x`."""
    if keys is None:
        return tensors[0]
    if isinstance(x, tuple):
        make = getattr(type(x), "_make", type(x))  # a namedtuple has a way of its own
        return make(tensors)
    filled = x.copy() if type(x) in (dict, list, OrderedDict, defaultdict) else copy(x)
    for key, tensor in zip(keys, tensors, strict=True):
        filled[key] = tensor
    return filled
