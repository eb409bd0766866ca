# SPDX-License-Identifier: MIT
"""Bad input: the same clear error on every rank, no data moved, and the group still usable."""

import os
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.support import Deadlines, World, Worlds
from tests.support.adapters import SUBJECTS, adapter, core, marked
from tests.support.calls import Outcome, attempt, make_tensor, usable_after
from tests.support.gather import gather_by
from tests.support.old_torch import needs_dtensor
from tests.support.world import device, is_on_gpus

# ------------------------------------------------------------------ on ranks


def bad_then_good(subject: str, by_rank: list[dict[str, Any]], check: bool) -> tuple[Outcome, list[float]]:
    """A gather with arguments of each rank's own, then a valid one in the same group."""
    rank = dist.get_rank()
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "1" if check else "0"
    gather = gather_by(subject)
    spec = by_rank[rank]
    x = make_tensor(spec)
    outcome = attempt(lambda: gather(x, spec.get("dim", 0), spec.get("sizes")) and None)
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "0"
    good = gather(torch.full((rank + 1,), float(rank), device=device()), 0, None)[0]
    return outcome, good.tolist()


def with_sizes(sizes: list[list[int]]) -> Outcome:
    """A gather of two rows with sizes of each rank's own, and nothing after it."""
    x = torch.ones(2, 3, device=device())
    return attempt(lambda: core().all_gather(x, sizes=sizes[dist.get_rank()]))


def call_reduce_scatter(specs: list[dict[str, Any]], sizes: list[Any], dim: int, check: bool) -> Outcome:
    rank = dist.get_rank()
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "1" if check else "0"
    x = make_tensor(specs[rank])
    outcome = attempt(lambda: core().reduce_scatter(x, dim, sizes=sizes[rank]))
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "0"
    return usable_after(outcome)


def call_helper(who: str, name: str, specs: list[dict[str, Any]]) -> Outcome:
    """One of the helpers of the core or of an adapter, on a tensor of each rank's own."""
    spec, module = specs[dist.get_rank()], core() if who == "core" else adapter(who)
    return usable_after(attempt(lambda: getattr(module, name)(make_tensor(spec), **spec.get("kwargs", {}))))


ODD_DIMS: dict[str, Any] = {
    "a tensor": torch.tensor([0, 1]),
    "a tensor with a fraction": torch.tensor(0.5),
    "an array": np.array([0, 1]),
    "huge": 10**30,
}
if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # before, it counts as an int
    ODD_DIMS["a bool of NumPy's"] = np.bool_(True)


def sizes_along(who: str, kind: str) -> Outcome:
    """`gather_sizes` with a dim of this kind on the last rank."""
    module, x = core() if who == "core" else adapter(who), torch.ones(2, 3, device=device())
    dim = ODD_DIMS[kind] if dist.get_rank() == dist.get_world_size() - 1 else 0
    return usable_after(attempt(lambda: module.gather_sizes(x, dim=dim)))


def different_operations() -> Outcome:
    x = torch.ones(2, 3, device=device())
    return attempt(lambda: core().all_gather(x) if dist.get_rank() else core().gather_sizes(x, dim=0))


def different_grad(grads: list[str]) -> Outcome:
    x = torch.ones(2, 3, device=device())
    return attempt(lambda: core().all_gather(x, grad=grads[dist.get_rank()])[1])  # type: ignore[arg-type]


def different_grad_mode(wants: list[bool], enabled: list[bool], grad: str) -> Outcome:
    rank = dist.get_rank()
    x = torch.ones(2, 3, device=device(), requires_grad=wants[rank])
    with torch.set_grad_enabled(enabled[rank]):
        return attempt(lambda: core().all_gather(x, grad=grad)[0].requires_grad)  # type: ignore[arg-type]


# ------------------------------------------------------------------ tests


OK: dict[str, Any] = {"shape": (2, 3)}

# what each of two ranks passes -> the error's class and words that its message must hold
ALONE_BAD: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "dim out of range": ([OK, {"dim": 2}], ["rank 1 of 2", "dim 2", "(2, 3)", "float32", "range of [-2, 1]"]),
    "negative dim out of range": ([{"dim": -3}, OK], ["rank 0 of 2", "dim -3", "(2, 3)", "range of [-2, 1]"]),
    "dim not an int": ([{"dim": "x"}, OK], ["rank 0 of 2", "dim 'x'", "(2, 3)", "'str'", "integer"]),
    "dim is None": ([OK, {"dim": None}], ["rank 1 of 2", "dim None", "(2, 3)", "'NoneType'", "integer"]),
    "0-d tensor": ([OK, {"shape": ()}], ["rank 1 of 2", "()", "dim 0", "no dimensions"]),
    "0-d on every rank": ([{"shape": ()}, {"shape": ()}], ["rank 0 of 2", "rank 1 of 2", "()"]),
    "not a tensor": ([OK, {"kind": "not a tensor"}], ["rank 1 of 2", "'float'", "dense torch.tensor"]),
    "sparse": ([{"kind": "sparse"}, OK], ["rank 0 of 2", "(2, 3)", "dense torch.tensor"]),
    "nested": ([OK, {"kind": "nested"}], ["rank 1 of 2", "float32"]),
    "lazy parameter": ([OK, {"kind": "lazy"}], ["rank 1 of 2", "UninitializedParameter", "dense torch.tensor"]),
    "quantized": ([OK, {"kind": "quantized"}], ["rank 1 of 2", "(2, 3)", "qint8"]),
    "DTensor": ([OK, {"kind": "DTensor"}], ["rank 1 of 2", "float32", "DTensor"]),
    "on no served device": ([OK, {"kind": "meta"}], ["rank 1 of 2", "(2, 3)", "on {served}"]),
}

DISAGREE: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "ndim": ([OK, {"shape": (2, 3, 1)}], ["rank 0 of 2", "(2, 3)", "rank 1 of 2", "(2, 3, 1)"]),
    "many dims": ([OK, {"shape": (1,) * 30}], ["(2, 3)", str((1,) * 30)]),
    "dtype": ([OK, {"dtype": "float64"}], ["float32", "float64"]),
    "dtype of one width": ([{"dtype": "float16"}, {"dtype": "bfloat16"}], ["float16", "bfloat16"]),
    "another dimension": ([OK, {"shape": (2, 4)}], ["(2, 3)", "(2, 4)"]),
    "dim": ([OK, {"dim": 1}], ["dim 0", "dim 1"]),
    "same bytes, other shape": ([{"shape": (2, 3, 4)}, {"shape": (2, 4, 3)}], ["(2, 3, 4)", "(2, 4, 3)"]),
}

GIVEN: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "sizes too short": ([{"sizes": [2]}, {"sizes": [2, 2]}], ["rank 0", "(2,)", "2 ranks"]),
    "sizes negative": ([{"sizes": [2, -1]}, {"sizes": [2, 2]}], ["rank 0", "(2, -1)"]),
    "sizes not matching": ([{"sizes": [2, 2]}, {"sizes": [2, 3]}], ["rank 1", "(2, 3)", "float32", "rank 1 has 2"]),
    "sizes not whole": ([{"sizes": [2, 2]}, {"sizes": [2, 1.5]}], ["rank 1", "float"]),
    "sizes a float": ([{"sizes": 2.0}, {"sizes": [2, 2]}], ["rank 0", "float"]),
}

CHECKED_ONLY: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "sizes differ elsewhere": ([{"sizes": [2, 1]}, {"sizes": [2, 2]}], ["(2, 1)", "(2, 2)"]),
    "sizes on one rank only": ([{"sizes": [2, 2]}, OK], ["(2, 2)", "None"]),
    "dtype": ([{"sizes": [2, 2]}, {"sizes": [2, 2], "dtype": "float64"}], ["float32", "float64"]),
}

GATHERERS = marked(SUBJECTS)


def expect_same_error(outcomes: list[Any], error: str, words: list[str]) -> None:
    assert {outcome.error for outcome in outcomes} == {error}, outcomes
    assert len({outcome.message for outcome in outcomes}) == 1
    assert "GatherError" in outcomes[0].bases
    assert [word for word in words if word not in outcomes[0].message] == [], outcomes[0].message


def run_bad(
    worlds: Worlds, backend: str, subject: str, specs: list[dict[str, Any]], *, check: bool = False
) -> list[Any]:
    answers = worlds.get(backend, 2).run(bad_then_good, subject, specs, check)
    assert [good for _, good in answers] == [[0.0, 1.0, 1.0]] * 2, "the next valid call"
    return [outcome for outcome, _ in answers]


@pytest.mark.parametrize("subject", GATHERERS)
@pytest.mark.parametrize("case", [pytest.param(c, marks=needs_dtensor) if c == "DTensor" else c for c in ALONE_BAD])
def test_one_ranks_bad_input_raises_everywhere(subject: str, case: str, backend: str, worlds: Worlds) -> None:
    """Where sizes are not given, what one rank finds wrong with its input every rank raises."""
    specs, words = ALONE_BAD[case]
    served = "cuda" if is_on_gpus(backend) else "cpu"
    words = [word.replace("{served}", served) for word in words]
    expect_same_error(run_bad(worlds, backend, subject, specs), "BadInputError", words)


@pytest.mark.parametrize("subject", GATHERERS)
@pytest.mark.parametrize("case", DISAGREE)
def test_disagreement_raises_everywhere(subject: str, case: str, backend: str, worlds: Worlds) -> None:
    """Ranks that do not fit together all raise the same error, naming each rank's shape and dtype."""
    specs, words = DISAGREE[case]
    expect_same_error(run_bad(worlds, backend, subject, specs), "DisagreementError", words)


@pytest.mark.parametrize("subject", GATHERERS)
@pytest.mark.parametrize("case", GIVEN)
def test_bad_sizes_raise_everywhere_with_the_check_on(subject: str, case: str, backend: str, worlds: Worlds) -> None:
    """SHARED_DISTRIBUTED_CHECK=1: the full exchange for given sizes too."""
    specs, words = GIVEN[case]
    expect_same_error(run_bad(worlds, backend, subject, specs, check=True), "BadInputError", words)


@pytest.mark.parametrize("case", CHECKED_ONLY)
def test_sizes_that_differ_between_ranks_raise_with_the_check_on(case: str, backend: str, worlds: Worlds) -> None:
    """What no rank can see alone, the check finds."""
    specs, words = CHECKED_ONLY[case]
    expect_same_error(run_bad(worlds, backend, "core sum", specs, check=True), "DisagreementError", words)


@pytest.mark.parametrize("case", GIVEN)
def test_bad_sizes_without_the_check_raise_on_the_rank_that_sees_it(case: str, backend: str, worlds: Worlds) -> None:
    """Given sizes that every rank can see are bad raise on every rank, without an exchange."""
    specs, words = GIVEN[case]
    bad = next(spec for spec in specs if spec["sizes"] != [2, 2])
    rank = specs.index(bad)
    both = [bad, bad] if case != "sizes not matching" else [{"sizes": [3, 2]}, {"sizes": [2, 3]}]
    outcomes = run_bad(worlds, backend, "core sum", both)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 2
    assert f"rank {rank}" in outcomes[rank].message
    assert [word for word in words if word not in outcomes[rank].message] == [], outcomes[rank].message


@pytest.mark.parametrize("check", [False, True])
def test_reduce_scatter_checks_its_sizes(check: bool, backend: str, worlds: Worlds) -> None:
    """Sizes must add up to the tensor's size along dim."""
    world = worlds.get(backend, 2)
    outcomes = world.run(call_reduce_scatter, [{"shape": (4, 3)}] * 2, [[2, 3]] * 2, 0, check)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 2
    assert "(4, 3)" in outcomes[0].message
    assert "[2, 3]" in outcomes[0].message


def test_reduce_scatter_finds_disagreement_with_the_check_on(backend: str, worlds: Worlds) -> None:
    """Sizes that add up on each rank but differ between them."""
    world = worlds.get(backend, 2)
    outcomes = world.run(call_reduce_scatter, [{"shape": (4, 3)}] * 2, [[2, 2], [1, 3]], 0, True)
    expect_same_error(outcomes, "DisagreementError", ["reduce_scatter", "(2, 2)", "(1, 3)"])


UNUSABLE = ["not a tensor", "sparse", "nested", "lazy", pytest.param("DTensor", marks=needs_dtensor)]


@pytest.mark.parametrize("kind", UNUSABLE)
def test_reduce_scatter_of_what_one_rank_cannot_use(kind: str, backend: str, worlds: Worlds) -> None:
    """The same error on every rank with the check on."""
    specs = [{"shape": (4, 3)}, {"shape": (4, 3), "kind": kind}]
    outcomes = worlds.get(backend, 2).run(call_reduce_scatter, specs, [[2, 2]] * 2, 0, True)
    expect_same_error(outcomes, "BadInputError", ["rank 1 of 2", "reduce_scatter"])


WITH_DIM = {"kwargs": {"dim": 0}}


@pytest.mark.parametrize(
    ("helper", "specs", "error"),
    [
        ("all_gather_same_dim", [OK, {"shape": (3, 3)}], "DisagreementError"),
        ("all_gather_same_dim", [{"shape": ()}, {"shape": (1,)}], "DisagreementError"),
        ("all_gather_same_dim", [OK, {"kind": "not a tensor"}], "BadInputError"),
        ("all_gather_same_dim", [OK, {"kind": "sparse"}], "BadInputError"),
        ("all_gather_same_dim", [{"kind": "nested"}, OK], "BadInputError"),
        ("all_gather_same_dim", [{"kind": "lazy"}, OK], "BadInputError"),
        ("gather_sizes", [WITH_DIM, {"kwargs": {"dim": 5}}], "BadInputError"),
        ("gather_sizes", [{"kwargs": {"dim": None}}, WITH_DIM], "BadInputError"),
        ("gather_sizes", [{"kwargs": {"dim": 0.0}}, WITH_DIM], "BadInputError"),
        ("gather_sizes", [WITH_DIM, {**WITH_DIM, "kind": "not a tensor"}], "BadInputError"),
        ("gather_sizes", [WITH_DIM, {**WITH_DIM, "kind": "nested"}], "BadInputError"),
        ("gather_sizes", [WITH_DIM, {**WITH_DIM, "kind": "lazy"}], "BadInputError"),
        ("all_gather_variable_dim", [OK, {"dtype": "int16"}], "DisagreementError"),
    ],
)
@pytest.mark.parametrize("who", ["core", pytest.param("st-moe", marks=pytest.mark.suite("st-moe"))])
def test_helpers_raise_everywhere(
    who: str, helper: str, specs: list[Any], error: str, backend: str, worlds: Worlds
) -> None:
    """The gathers without gradient keep the same promise."""
    outcomes = worlds.get(backend, 2).run(call_helper, who, helper, specs)
    expect_same_error(outcomes, error, [helper])


@pytest.mark.parametrize("kind", ODD_DIMS)
@pytest.mark.parametrize("who", ["core", pytest.param("st-moe", marks=pytest.mark.suite("st-moe"))])
def test_a_dim_that_is_not_an_int_raises_everywhere(who: str, kind: str, backend: str, worlds: Worlds) -> None:
    """On one rank only: also what cannot be compared with an int."""
    expect_same_error(worlds.get(backend, 2).run(sizes_along, who, kind), "BadInputError", ["rank 1 of 2", "dim "])


def test_different_operations_raise_everywhere(backend: str, worlds: Worlds) -> None:
    """Ranks that meet in different operations are told so."""
    expect_same_error(
        worlds.get(backend, 2).run(different_operations),
        "DisagreementError",
        ["gather_sizes", "all_gather"],
    )


def test_different_gradients_raise_everywhere(backend: str, worlds: Worlds) -> None:
    """grad='sum' on one rank and 'local' on the other would hang in the backward."""
    world = worlds.get(backend, 2)
    expect_same_error(
        world.run(different_grad, ["sum", "local"]),
        "DisagreementError",
        ["summed gradient True", "summed gradient False"],
    )
    outcomes = world.run(different_grad, ["sum", "mean"])
    expect_same_error(outcomes, "BadInputError", ["rank 1 of 2", "all_gather of (2, 3) torch.float32", "'mean'"])


def test_different_grad_modes_raise_where_a_gradient_is_summed(backend: str, worlds: Worlds) -> None:
    """A rank under no_grad would never enter the summed backward that another rank wants."""
    world = worlds.get(backend, 2)
    run = different_grad_mode
    outcomes = world.run(run, [True, True], [True, False], "sum")
    expect_same_error(outcomes, "DisagreementError", ["rank 1 of 2", "(2, 3)", "grad_enabled=False"])
    assert [o.value for o in world.run(run, [True, True], [True, False], "local")] == [True, False]
    assert [o.value for o in world.run(run, [True, False], [True, True], "local")] == [True, False]  # nobody joins in
    assert [o.value for o in world.run(run, [True, False], [True, True], "sum")] == [True, True]
    assert [o.value for o in world.run(run, [False, False], [True, False], "sum")] == [False, False]
    assert [o.value for o in world.run(run, [True, True], [False, False], "sum")] == [False, False]


def test_wrong_given_sizes_end_in_an_error_not_a_hang() -> None:
    """With the check off, the rank that sees it raises at once; the other one within the group's timeout."""
    with World(2, deadlines=Deadlines(collective=2.0, case=12.0)) as world:
        answers = world.run(with_sizes, [[2, 2], [2, 3]])
        assert [outcome.error for outcome in answers] == ["TransportError", "BadInputError"]
        assert "rank 1 has 2" in answers[1].message
