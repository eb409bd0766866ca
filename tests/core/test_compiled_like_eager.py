# SPDX-License-Identifier: MIT
"""In a compiled region the same checks, helpers and errors as in eager mode, also where some ranks are not compiled."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shared_distributed as core
from tests.support import Worlds
from tests.support.calls import Outcome, attempt, usable_after
from tests.support.old_torch import WHOLE, needs_compile, needs_whole_graphs
from tests.support.oracle import same, upstream, values
from tests.support.world import device

pytestmark = needs_compile

# ------------------------------------------------------------------ on ranks


def compiled_on(ranks: list[int], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled whole where this rank is among them."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=WHOLE, backend="aot_eager") if dist.get_rank() in ranks else function


def checked(ranks: list[int], how: str) -> Outcome:
    """A gather or a sum with sizes given, and SHARED_DISTRIBUTED_CHECK=1."""
    rank = dist.get_rank()
    x = torch.full((2, 4 if how == "shape" and rank else 3), float(rank), device=device())
    x.requires_grad_(how == "right" or (how == "gradient" and rank == 0))
    sizes = [2 + rank, 2] if how == "sizes" else [2, 2]
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "1"
    try:
        if how == "two tensors":
            run = compiled_on(ranks, lambda x: core.all_gather([x, x[:, : 3 - rank]], sizes=sizes)[0][1])
        else:
            run = compiled_on(ranks, lambda x: core.all_gather(x, sizes=sizes)[0])
        return usable_after(attempt(lambda: run(x).tolist()))
    finally:
        os.environ["SHARED_DISTRIBUTED_CHECK"] = "0"


def scattered(ranks: list[int], sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """A reduce_scatter, whose ranks agree on the sizes first, and its gradient."""
    rank = dist.get_rank()
    x = upstream(rank, (sum(sizes), 2), "float32").to(device()).requires_grad_()
    own = compiled_on(ranks, lambda x: core.reduce_scatter(x, sizes=list(sizes)))(x)
    return own, torch.autograd.grad((own * (rank + 1)).sum(), x)[0]


def helped(ranks: list[int], name: str) -> Any:
    rank = dist.get_rank()
    if name == "gather_sizes":
        t = torch.ones(3, rank + 1, device=device())
        x = torch.ones(3, 2, device=device(), requires_grad=True)

        def both(t: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            own = core.reduce_scatter(x, sizes=[1, 2])
            return own, core.gather_sizes(t, dim=-1)

        own, sizes = compiled_on(ranks, both)(t, x)
        return sizes, torch.autograd.grad((own * (rank + 1)).sum(), x)[0]
    t = values(rank, () if name == "0-d" else (2, 3), "float32").to(device())
    return compiled_on(ranks, core.all_gather_same_dim)(t)


def with_dynamic_shapes() -> tuple[list[torch.Tensor], list[int]]:
    """What is gathered by each helper where every size is symbolic, and graphs may break; sizes of two calls."""
    torch._dynamo.reset()
    rank = dist.get_rank()

    def gathers(t: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        gathered, _ = core.all_gather(t)
        return [gathered, core.all_gather_variable_dim(t)[0], *core.all_gather_same_dim(t[:1])], core.gather_sizes(
            t, dim=0
        )

    run = torch.compile(gathers, backend="aot_eager", dynamic=True)
    found = [run(values(rank, (rank + n, 3), "float32").to(device())) for n in (2, 4)]
    return found[0][0], [size for _, sizes in found for size in sizes.tolist()]


def wrong(ranks: list[int], how: str) -> Outcome:
    """A call that eager mode refuses."""
    x = torch.ones(2, 3, device=device())
    last = dist.get_rank() == dist.get_world_size() - 1
    calls: dict[str, Callable[..., Any]] = {
        "dim": lambda x: core.all_gather(x, 2 if last else 0),
        "dim, sizes given": lambda x: core.all_gather(x, 2, sizes=[2, 2]),
        "negative dim": lambda x: core.all_gather(x, -3 if last else 0),
        "no int": lambda x: core.all_gather(x, 0.0 if last else 0),  # type: ignore[arg-type]
        "0-d": lambda x: core.all_gather(x.sum() if last else x),
        "helper's dim": lambda x: core.gather_sizes(x, dim=5 if last else 0),
        "grad": lambda x: core.all_gather(x, grad="mean" if last else "sum"),  # type: ignore[arg-type]
        "grad, sizes given": lambda x: core.all_gather(x, grad="mean", sizes=[2, 2]),  # type: ignore[arg-type]
        "no tensor": lambda x: core.all_gather([] if last else [x]),
        "no tensor in a list": lambda x: core.all_gather([x, 3.0 if last else x]),
        "no tensor at all": lambda x: core.all_gather(3.0 if last else x),
        "no tensor to sum": lambda x: core.reduce_scatter([x, 3.0 if last else x], sizes=[1, 1]),
        "sizes of a sum": lambda x: core.reduce_scatter(x, sizes=[1, 2] if last else [1, 1]),
        "no check": lambda x: core.all_gather(x, check=False if last else None),
        "too many sizes": lambda x: core.all_gather(x, sizes=[2, 2, 2]),
    }
    run = compiled_on(ranks, calls[how])
    return usable_after(attempt(lambda: run(x)))


# ------------------------------------------------------------------ tests

FOUND_BEFORE_ROWS_MOVE = pytest.mark.only_over("gloo", "nccl", reason="no row moves, and the exchange is the others'")
WHO = pytest.mark.parametrize("ranks", [[0, 1], [1]], ids=["both ranks compiled", "one rank compiled"])


@FOUND_BEFORE_ROWS_MOVE
@WHO
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("shape", ["(2, 3)", "(2, 4)"]),
        ("sizes", ["(2, 2)", "(3, 2)"]),
        ("two tensors", ["(2, 3)", "(2, 2)"]),
    ],
)
def test_the_check_of_given_sizes_is_made_in_a_compiled_region(
    how: str, words: list[str], ranks: list[int], backend: str, worlds: Worlds
) -> None:
    """SHARED_DISTRIBUTED_CHECK=1: calls that do not fit together are one error on every rank, compiled or not."""
    outcomes = worlds.get(backend, 2).run(checked, ranks, how)
    assert [outcome.error for outcome in outcomes] == ["DisagreementError"] * 2
    assert outcomes[0].message == outcomes[1].message
    assert [word for word in words if word not in outcomes[0].message] == []


@WHO
def test_with_the_check_a_right_call_is_right(ranks: list[int], backend: str, worlds: Worlds) -> None:
    """The exchange costs time, and nothing else."""
    expected = [[0.0] * 3] * 2 + [[1.0] * 3] * 2
    assert [o.value for o in worlds.get(backend, 2).run(checked, ranks, "right")] == [expected] * 2


@needs_whole_graphs
def test_the_check_sees_who_wants_a_gradient(backend: str, worlds: Worlds) -> None:
    """Where all are compiled no input is replaced: all raise, and see whose input requires no gradient."""
    outcomes = worlds.get(backend, 2).run(checked, [0, 1], "gradient")
    assert [outcome.error for outcome in outcomes] == ["DisagreementError"] * 2
    assert "requires_grad True" in outcomes[0].message
    assert "requires_grad False" in outcomes[0].message


@WHO
def test_compiled_and_eager_ranks_meet_in_reduce_scatter(ranks: list[int], backend: str, worlds: Worlds) -> None:
    """They agree in the same words."""
    sizes = (2, 3)
    whole = sum(upstream(rank, (5, 2), "float32") for rank in range(2))
    arriving = torch.cat([torch.full((n, 2), float(rank + 1)) for rank, n in enumerate(sizes)])
    for rank, (own, gradient) in enumerate(worlds.get(backend, 2).run(scattered, ranks, sizes)):
        assert same(own, whole.split(sizes)[rank])
        assert same(gradient, arriving)


@WHO
@pytest.mark.parametrize("name", ["same_dim", "0-d"])
def test_all_gather_same_dim_compiles(name: str, ranks: list[int], backend: str, worlds: Worlds) -> None:
    """Every rank's tensor, 0-d ones too."""
    expected = [values(rank, () if name == "0-d" else (2, 3), "float32") for rank in range(2)]
    for parts in worlds.get(backend, 2).run(helped, ranks, name):
        assert len(parts) == 2
        assert all(same(part, wanted) for part, wanted in zip(parts, expected, strict=True))


@WHO
def test_gather_sizes_compiles(ranks: list[int], backend: str, worlds: Worlds) -> None:
    """Along a negative dim; and what came with these sizes is not taken for what a backward gathers later."""
    for sizes, gradient_of_sum in worlds.get(backend, 2).run(helped, ranks, "gather_sizes"):
        assert sizes.tolist() == [1, 2]
        assert gradient_of_sum.tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]


def test_dynamic_shapes(backend: str, worlds: Worlds) -> None:
    """`torch.compile(…, dynamic=True)`, not as one graph: the gather and its helpers."""
    whole = torch.cat([values(rank, (rank + 2, 3), "float32") for rank in range(2)])
    firsts = [values(rank, (rank + 2, 3), "float32")[:1] for rank in range(2)]
    for parts, sizes in worlds.get(backend, 2).run(with_dynamic_shapes):
        assert all(same(part, wanted) for part, wanted in zip(parts, [whole, whole, *firsts], strict=True))
        assert sizes == [2, 3, 4, 5]


@FOUND_BEFORE_ROWS_MOVE
@WHO
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("dim", ["rank 1 of 2", "dim 2"]),
        ("negative dim", ["rank 1 of 2", "dim -3"]),
        ("no int", ["rank 1 of 2", "integer"]),
        ("0-d", ["rank 1 of 2", "()"]),
        ("helper's dim", ["rank 1 of 2", "dim 5"]),
        ("grad", ["rank 1 of 2", "'mean'"]),
        ("no tensor", ["rank 1 of 2", "all_gather[0]"]),
        ("no tensor in a list", ["rank 1 of 2", "'float'", "dense torch.tensor"]),
        ("no tensor at all", ["rank 1 of 2", "'float'", "dense torch.tensor"]),
        ("no tensor to sum", ["rank 1 of 2", "'float'", "dense torch.tensor"]),
        ("sizes of a sum", ["rank 1 of 2", "[1, 2]"]),
        ("no check", ["rank 1 of 2", "check=False needs sizes"]),
    ],
)
def test_what_one_rank_does_wrong_in_a_compiled_region_is_the_eager_error_everywhere(
    how: str, words: list[str], ranks: list[int], backend: str, worlds: Worlds
) -> None:
    """It is found when the region runs, and told to every rank; the group stays usable."""
    outcomes = worlds.get(backend, 2).run(wrong, ranks, how)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 2, outcomes
    assert outcomes[0].message == outcomes[1].message
    assert [word for word in words if word not in outcomes[0].message] == []


@FOUND_BEFORE_ROWS_MOVE
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("dim, sizes given", ["dim 2"]),
        ("grad, sizes given", ["'mean'"]),
        ("too many sizes", ["(2, 2, 2) for 2 ranks"]),
    ],
)
def test_what_a_rank_sees_alone_in_a_compiled_region(how: str, words: list[str], backend: str, worlds: Worlds) -> None:
    """With sizes given nobody asks the others: each rank that sees it raises the eager error."""
    for rank, outcome in enumerate(worlds.get(backend, 2).run(wrong, [0, 1], how)):
        assert outcome.error == "BadInputError"
        assert [word for word in [*words, f"rank {rank} of 2"] if word not in outcome.message] == []
