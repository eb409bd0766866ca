# SPDX-License-Identifier: MIT
"""Tensors without rows of their own, and tracers other than torch.compile: values, or one error on every rank."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.support import Worlds
from tests.support.calls import Outcome, attempt, usable_after
from tests.support.old_torch import needs_lazy_zeros
from tests.support.oracle import values
from tests.support.world import device

pytestmark = pytest.mark.only_over("gloo", reason="what is refused is refused before any backend is asked")
tracing = pytest.importorskip("torch.fx.experimental.proxy_tensor")

# ------------------------------------------------------------------ on ranks


def rows() -> Tensor:
    return values(dist.get_rank(), (dist.get_rank() + 1, 3), "float32").to(device())


def gathered(x: Tensor) -> Tensor:
    return core.all_gather(x)[0]


def in_fake_mode(x: Tensor) -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return gathered(torch.ones(3, 3))


def ahead_of_time(x: Tensor) -> Any:
    from functorch.compile import aot_function, nop

    return aot_function(gathered, fw_compiler=nop)(x.requires_grad_())


TRACERS: dict[str, Callable[[Tensor], Any]] = {
    "make_fx": lambda x: tracing.make_fx(gathered)(x),
    "make_fx with fake tensors": lambda x: tracing.make_fx(gathered, tracing_mode="fake")(x),
    "aot_function": ahead_of_time,
    "torch.jit.trace": lambda x: torch.jit.trace(gathered, x),
    "FakeTensorMode": in_fake_mode,
}


def traced(tracer: str) -> Outcome:
    return usable_after(attempt(lambda: TRACERS[tracer](rows())))


def without_memory(kind: str) -> Outcome:
    """A gather in which the last rank's tensor has no memory of its own."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = rows()
    if dist.get_rank() == dist.get_world_size() - 1:
        if kind == "freed":
            x.untyped_storage().resize_(0)
        if kind == "fake":
            x = FakeTensorMode().from_tensor(x)
        if kind == "zeros":
            x = torch._efficientzerotensor(x.shape)
        if kind == "functional":
            return usable_after(attempt(lambda: torch.func.functionalize(gathered)(x).tolist()))
    return usable_after(attempt(lambda: gathered(x).tolist()))


def backwards_at_once(grad: str) -> Outcome:
    """Two gradients of a gather in one call."""
    x = rows().requires_grad_()
    y, _ = core.all_gather(x, grad=grad)  # type: ignore[arg-type]
    arriving = torch.stack([torch.ones_like(y), 2 * torch.ones_like(y)])
    return usable_after(attempt(lambda: torch.autograd.grad(y, x, arriving, is_grads_batched=True)[0].tolist()))


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize("tracer", TRACERS)
def test_tracers_are_refused(tracer: str, worlds: Worlds) -> None:
    """They would record this rank's rows, or send none: the error says what to use, and the group stays usable."""
    for outcome in worlds.get("gloo", 2).run(traced, tracer):
        assert outcome.error == "BadInputError", outcome
        assert "use torch.compile" in outcome.message


@pytest.mark.parametrize("kind", ["freed", "fake"])
def test_a_tensor_without_memory_is_refused_on_every_rank(kind: str, worlds: Worlds) -> None:
    """On one rank only: no process dies, and the group stays usable."""
    outcomes = worlds.get("gloo", 2).run(without_memory, kind)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 2, outcomes
    assert outcomes[0].message == outcomes[1].message
    assert "the arguments of ranks [1] cannot be used" in outcomes[0].message


@pytest.mark.parametrize("kind", [pytest.param("zeros", marks=needs_lazy_zeros), "functional"])
def test_a_tensor_with_unusual_memory_is_gathered(kind: str, worlds: Worlds) -> None:
    """Lazy zeros, and tensors under functionalize: torch reads their values."""
    last = torch.zeros(2, 3) if kind == "zeros" else values(1, (2, 3), "float32")
    expected = torch.cat([values(0, (1, 3), "float32"), last]).tolist()
    assert [outcome.value for outcome in worlds.get("gloo", 2).run(without_memory, kind)] == [expected] * 2


@needs_lazy_zeros
def test_several_backwards_at_once(worlds: Worlds) -> None:
    """A local gradient is a slice, and can be batched; a summed one is refused on every rank."""
    local = worlds.get("gloo", 2).run(backwards_at_once, "local")
    assert [outcome.value for outcome in local] == [
        [[[1.0] * 3] * rows, [[2.0] * 3] * rows] for rows in (1, 2)
    ]  # fmt: skip
    for outcome in worlds.get("gloo", 2).run(backwards_at_once, "sum"):
        assert outcome.error == "BadInputError"
        assert "is_grads_batched" in outcome.message
