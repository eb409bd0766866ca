# SPDX-License-Identifier: MIT
"""Containers of tensors come back as what they were, from the gather and its adjoint, or are refused everywhere."""

from collections import OrderedDict, UserDict, defaultdict
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.support import Worlds
from tests.support.calls import Outcome, attempt, usable_after
from tests.support.oracle import same, upstream, values
from tests.support.world import device

SIZES = (2, 0, 3)


class Pair(NamedTuple):
    b: Tensor
    a: Tensor


class Batch(dict[str, Tensor]):
    """A dict with more to it than its items."""

    name = ""


class Rows(list[Tensor]):
    """A list that cannot be made from another."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        super().__init__([first, second])


class Sealed(tuple[Tensor, ...]):
    """A tuple that cannot be made anew."""

    def __new__(cls, first: Tensor, second: Tensor) -> "Sealed":
        return super().__new__(cls, (first, second))


class Frozen(dict[str, Tensor]):
    """A dict that takes no items."""

    def __setitem__(self, key: str, value: Tensor) -> None:
        raise TypeError("frozen")


class Struct(UserDict[str, Tensor]):
    """A mapping that is no dict."""


def filled(kind: str, b: Tensor, a: Tensor) -> Any:
    """Two tensors in a container of that kind; where there are keys, not in their order."""
    if kind == "batch":
        batch = Batch(b=b, a=a)
        batch.name = "mine"
        return batch
    makers: dict[str, Any] = {
        "dict": lambda: {"b": b, "a": a},
        "defaultdict": lambda: defaultdict(list, {"b": b, "a": a}),
        "OrderedDict": lambda: OrderedDict([("b", b), ("a", a)]),
        "namedtuple": lambda: Pair(b, a),
        "torch's": lambda: torch.return_types.max((b, a)),  # type: ignore[attr-defined]
        "list": lambda: [b, a],
        "rows": lambda: Rows(b, a),
        "sealed": lambda: Sealed(b, a),
        "frozen": lambda: Frozen(b=b, a=a),
        "mapping": lambda: Struct(b=b, a=a),
    }
    return makers[kind]()


def of_rank(rank: int) -> tuple[Tensor, Tensor]:
    return values(rank, (SIZES[rank], 3), "float32"), values(rank + 5, (SIZES[rank],), "float64")


# ------------------------------------------------------------------ on ranks


def shown(container: Any) -> tuple[Any, ...]:
    """What a container is, and holds, as data."""
    keys = list(container) if isinstance(container, dict) else None
    factory = getattr(container, "default_factory", None)
    tensors = list(container.values()) if isinstance(container, dict) else list(container)
    return type(container).__name__, keys, factory is list, getattr(container, "name", ""), tensors


def gathered_in(kind: str, compiled: bool) -> tuple[Any, ...]:
    b, a = (part.to(device()) for part in of_rank(dist.get_rank()))
    given = filled(kind, b, a)
    gather: Any = core.all_gather
    if compiled:
        torch._dynamo.reset()
        gather = torch.compile(lambda given: core.all_gather(given, sizes=SIZES), fullgraph=True, backend="aot_eager")
    container, sizes = gather(given)
    assert tuple(sizes) == SIZES
    assert shown(given) == (*shown(filled(kind, b, a))[:-1], [b, a]), "the caller's own was written to"
    return shown(container)


def scattered_in(kind: str, wants: list[bool]) -> tuple[Any, ...]:
    """A container through the adjoint, and the gradient of its first tensor, which only some ranks' inputs need."""
    rank = dist.get_rank()
    b, a = (upstream(rank, shape, "float32").to(device()) for shape in ((sum(SIZES), 2), (sum(SIZES),)))
    b.requires_grad_(wants[rank])
    container = core.reduce_scatter(filled(kind, b, a), sizes=SIZES)
    first, second = container.values() if isinstance(container, dict) else container
    assert first.requires_grad
    assert not second.requires_grad
    (first * (rank + 1)).sum().backward()
    return *shown(container), b.grad


def refused(kind: str, name: str) -> Outcome:
    """A container on one rank that cannot be made anew; the others have a list."""
    b, a = torch.ones(4, 3, device=device()), torch.ones(4, device=device())
    given = filled(kind, b, a) if dist.get_rank() == 1 else [b, a]
    options = {"sizes": [2, 2]} if name == "reduce_scatter" else {}
    return usable_after(attempt(lambda: getattr(core, name)(given, **options)))


# ------------------------------------------------------------------ tests

KINDS = ["dict", "defaultdict", "OrderedDict", "namedtuple", "torch's", "list", "batch"]


def expected_of(kind: str) -> tuple[Any, ...]:
    return shown(filled(kind, torch.zeros(1), torch.zeros(1)))[:-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_container_comes_back_as_what_it_was(kind: str, backend: str, worlds: Worlds) -> None:
    """Its type, the order of its keys, its default factory and its attributes; and the caller's own stays as it was."""
    parts = [of_rank(rank) for rank in range(3)]
    for *what, tensors in worlds.get(backend, 3).run(gathered_in, kind, False):
        assert tuple(what) == expected_of(kind)
        assert same(tensors[0], torch.cat([b for b, _ in parts]))
        assert same(tensors[1], torch.cat([a for _, a in parts]))


@pytest.mark.parametrize("kind", KINDS)
def test_reduce_scatter_takes_containers(kind: str, backend: str, worlds: Worlds) -> None:
    """As all_gather does, its gradient too, though only one rank's input needs it."""
    whole = [sum(upstream(rank, shape, "float32") for rank in range(3)) for shape in ((5, 2), (5,))]
    arriving = torch.cat([torch.full((n, 2), float(rank + 1)) for rank, n in enumerate(SIZES)])
    answers = worlds.get(backend, 3).run(scattered_in, kind, [False, False, True])
    for rank, (*what, tensors, gradient) in enumerate(answers):
        assert tuple(what) == expected_of(kind)
        assert same(tensors[0], whole[0].split(SIZES)[rank])
        assert same(tensors[1], whole[1].split(SIZES)[rank])
        assert gradient is None if rank < 2 else same(gradient, arriving)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [("sealed", "cannot make another"), ("frozen", "frozen"), ("mapping", "Struct")],
)
def test_a_container_that_cannot_be_made_anew_is_refused_everywhere(
    kind: str, words: str, name: str, backend: str, worlds: Worlds
) -> None:
    """Before anything moves: on one rank only, it is the same error on every rank, and the group stays usable."""
    outcomes = worlds.get(backend, 2).run(refused, kind, name)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 2
    assert outcomes[0].message == outcomes[1].message
    assert words in outcomes[0].message


def test_a_list_of_a_kind_of_its_own(backend: str, worlds: Worlds) -> None:
    """It is copied and filled, not made from what it holds: its constructor may want anything."""
    assert [what for what, *_ in worlds.get(backend, 3).run(gathered_in, "rows", False)] == ["Rows"] * 3


@pytest.mark.parametrize("kind", ["sealed", "frozen"])
def test_alone_such_a_container_is_refused_too(kind: str) -> None:
    """So that a program does not start to fail with its second rank."""
    with pytest.raises(core.BadInputError, match="cannot make another"):
        core.all_gather(filled(kind, torch.ones(2), torch.ones(2)))
    alone = core.all_gather(filled("namedtuple", torch.ones(2), torch.zeros(2)))
    assert shown(alone[0])[:-1] == ("Pair", None, False, "")
