# SPDX-License-Identifier: MIT
"""torch.func and forward mode: refused on every rank, since neither torch.compile nor the other ranks could follow."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.support import Worlds
from tests.support.calls import Outcome, attempt, usable_after
from tests.support.old_torch import needs_func
from tests.support.world import device

pytestmark = pytest.mark.only_over(
    "gloo", "nccl", reason="nccl-rules is written in Python, and torch.func wraps the tensors that it makes"
)


def dual(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with forward.dual_level():
        return forward.unpack_dual(function(forward.make_dual(x, torch.ones_like(x)))).tangent


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[0],
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "vmap": lambda f, x: torch.func.vmap(f)(torch.stack([x, x])),
    "forward mode": dual,
}


# ------------------------------------------------------------------ on ranks


def transformed(name: str, on: list[int], what: str, given: bool) -> Outcome:
    """A gather or a sum under a transform, on some ranks; the others call it without."""
    rank = dist.get_rank()
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda x: core.all_gather(x, sizes=[2, 2] if given else None)[0],
        "local": lambda x: core.all_gather(x, grad="local", sizes=[2, 2] if given else None)[0],
        "reduce_scatter": lambda x: core.reduce_scatter(x, sizes=[1, 1]),
    }
    function, x = functions[what], torch.full((2,), float(rank), device=device())
    return usable_after(attempt(lambda: TRANSFORMS[name](function, x) if rank in on else function(x)))


def beside_a_transform() -> list[float]:
    """Labels that are gathered while something else is differentiated by torch.func."""
    labels = torch.full((dist.get_rank() + 1,), float(dist.get_rank() + 1), device=device())
    weight = torch.ones((), device=device())
    gradient = torch.func.grad(lambda w: (w * core.all_gather(labels * 2)[0]).sum())(weight)
    return [gradient.item()]


# ------------------------------------------------------------------ tests

NAMES = [name if name == "forward mode" else pytest.param(name, marks=needs_func) for name in TRANSFORMS]


@pytest.mark.parametrize("what", ["sum", "local", "reduce_scatter"])
@pytest.mark.parametrize("on", [[0, 1], [1]], ids=["on both ranks", "on one rank"])
@pytest.mark.parametrize("name", NAMES)
def test_transforms_are_refused_on_every_rank(
    name: str, on: list[int], what: str, backend: str, worlds: Worlds
) -> None:
    """One error, before anything moves, that says what to use instead; no derivative is lost in silence."""
    outcomes = worlds.get(backend, 2).run(transformed, name, on, what, False)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 2, outcomes
    assert outcomes[0].message == outcomes[1].message
    assert "use torch.autograd.grad" in outcomes[0].message


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_refused_where_sizes_are_given(name: str, backend: str, worlds: Worlds) -> None:
    """By each rank alone."""
    for outcome in worlds.get(backend, 2).run(transformed, name, [0, 1], "sum", True):
        assert outcome.error == "BadInputError"
        assert "use torch.autograd.grad" in outcome.message


@needs_func
def test_a_gather_beside_a_transform(backend: str, worlds: Worlds) -> None:
    """What torch.func does not differentiate is gathered as ever, also inside the function that it transforms."""
    assert worlds.get(backend, 2).run(beside_a_transform) == [[10.0]] * 2
