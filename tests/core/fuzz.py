# SPDX-License-Identifier: MIT
"""Calls with arguments that make sense or do not, one after the other in one group."""

import os
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.adapters import adapter, core
from tests.support.calls import Outcome, attempt
from tests.support.gather import gather_by, scatter_in_memory
from tests.support.oracle import values
from tests.support.world import device

HELPERS = ("all_gather_variable_dim", "all_gather_same_dim", "gather_sizes", "reduce_scatter")


class Call(NamedTuple):
    """What one rank passes. What is no plain data is named by a text, and made on the rank."""

    shape: tuple[int, ...]
    dim: Any = 0
    sizes: Any = None
    dtype: str = "float32"
    kind: str = "dense"
    wants_grad: bool = False
    grad_mode: bool = True


class Trial(NamedTuple):
    """One call on every rank, with the full check of given sizes on or off."""

    subject: str
    by_rank: tuple[Call, ...]
    check: bool = False


def run_trials(trials: list[Trial]) -> list[Outcome]:
    """What each of them gives on this rank: a tensor, or an error. A lost group ends them."""
    outcomes: list[Outcome] = []
    for trial in trials:
        call = trial.by_rank[dist.get_rank()]
        os.environ["SHARED_DISTRIBUTED_CHECK"] = "1" if trial.check else "0"
        x, dim, sizes = make_tensor(call), make_dim(call.dim), make_sizes(call.sizes)
        with torch.set_grad_enabled(call.grad_mode):
            outcomes.append(attempt(partial(call_by, trial.subject, x, dim, sizes)))
        if outcomes[-1].error == "TransportError":
            break
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "0"
    return outcomes


def call_by(subject: str, x: Any, dim: Any, sizes: Any) -> Tensor:
    """The tensor that matters of what a subject returns. A subject is a way to gather, or whose function it is."""
    who, _, what = subject.partition(" ")
    if what not in HELPERS:
        return gather_by(subject)(x, dim, sizes)[0].detach()
    helper = getattr(core() if who == "core" else adapter(who), what)
    if what == "all_gather_same_dim":
        return torch.stack(helper(x))
    if what == "gather_sizes":
        return helper(x, dim=dim)  # type: ignore[no-any-return]
    if what == "reduce_scatter":
        return helper(x, dim, sizes=sizes).detach()  # type: ignore[no-any-return]
    return helper(x, dim, sizes)[0]  # type: ignore[no-any-return]


def make_tensor(call: Call) -> Any:
    if call.kind in ("number", "none", "text", "empty list"):
        return {"number": 1.0, "none": None, "text": "x", "empty list": []}[call.kind]
    if call.kind == "meta":
        return torch.empty(call.shape, device="meta")
    x = values(dist.get_rank(), call.shape, call.dtype).to(device())
    if call.kind == "sparse":
        return torch.ones(2, 3, device=device()).to_sparse()
    if call.kind == "csr":
        return torch.ones(2, 3, device=device()).to_sparse_csr()
    if call.kind == "nested":
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device=device())
    if call.kind == "quantized":
        return torch.quantize_per_tensor(torch.ones(2, 3, device=device()), 0.5, 0, torch.quint8)
    if call.kind == "scattered" and x.ndim:
        x = scatter_in_memory(x)
    return x.requires_grad_() if call.wants_grad else x


def make_dim(dim: Any) -> Any:
    return {"a tensor": torch.tensor(0), "a float tensor": torch.tensor(0.5)}.get(dim, dim)


def make_sizes(sizes: Any) -> Any:
    """Tuples stand for tensors; a text for what a list of numbers cannot say."""
    if isinstance(sizes, tuple):
        return torch.tensor(sizes, dtype=torch.long, device=device())
    made = {
        "floats": lambda: [2.0, 2.0, 2.0],
        "a number": lambda: 2,
        "nested": lambda: [[1], [1], [1]],
        "none inside": lambda: [1, None, 1],
        "float tensor": lambda: torch.ones(3),
        "bool tensor": lambda: torch.ones(3, dtype=torch.bool),
        "2-d tensor": lambda: torch.ones(3, 3, dtype=torch.long),
        "0-d tensor": lambda: torch.tensor(2),
        "meta tensor": lambda: torch.ones(3, dtype=torch.long, device="meta"),
        "sparse tensor": lambda: torch.ones(3, dtype=torch.long).to_sparse(),
        "text": lambda: "22",
    }
    return made[sizes]() if isinstance(sizes, str) else sizes
