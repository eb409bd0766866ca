# SPDX-License-Identifier: MIT
"""torch.compile: the same values, gradients and errors as eager; in whole graphs, where this torch can."""

import pytest

from tests.core.compiled import (
    compiled_clash_in_a_dict,
    compiled_disagreement,
    compiled_group,
    compiled_like_eager,
    compiled_reduce_scatter,
    compiled_wants,
    compiled_wrong_sizes,
    some_ranks_compiled,
    some_ranks_compiled_with_a_dict,
    stale_answers_while_compiling,
)
from tests.support import World, Worlds
from tests.support.adapters import GRADIENTS, SUBJECTS, marked, marks_of
from tests.support.old_torch import WHOLE, needs_compile, needs_whole_graphs
from tests.support.world import needs_triton

pytestmark = [
    pytest.mark.only_over("gloo", "nccl", reason="compiled code calls what the other tests call here"),
    needs_compile,
]

ROUNDS = {2: [(2, 3), (4, 5), (6, 3), (9, 4)], 3: [(2, 3, 4), (4, 5, 2), (6, 3, 3)]}
# the core and every adapter meet each way to pass sizes, their gradients by turns
BY_TURNS = [
    pytest.param(f"{name} {gradients[(row + column) % len(gradients)]}", given, marks=marks_of(name))
    for row, (name, gradients) in enumerate(GRADIENTS.items())
    for column, given in enumerate(["no", "list", "tensor"])
]
# "local" of those that also sum is a part of the same code
GATHERERS = marked([s for s in SUBJECTS if s not in ("core local", "musiclm local")])


def check(world: World, subject: str, compiler: str, given: str) -> None:
    for wrong, graphs in world.run(compiled_like_eager, subject, compiler, given, ROUNDS[world.size]):
        assert not wrong
        assert not WHOLE or graphs <= 2, "new sizes recompiled more than once"


@pytest.mark.parametrize(("subject", "given"), BY_TURNS)
def test_compiled_is_eager(subject: str, given: str, backend: str, worlds: Worlds) -> None:
    """Values, sizes and gradients over several sets of sizes, with no more than two graphs."""
    check(worlds.get(backend, 2), subject, "aot_eager", given)


def test_compiled_is_eager_on_three_ranks(backend: str, worlds: Worlds) -> None:
    """The same on an odd world."""
    check(worlds.get(backend, 3), "core sum", "aot_eager", "no")


@needs_triton
@pytest.mark.parametrize(
    ("subject", "given"),
    [
        pytest.param(s, g, marks=pytest.mark.suite(s.split()[0]))
        for s, g in [
            ("core sum", "no"),
            ("core local", "list"),
            ("musiclm sum", "tensor"),
            ("spear-tts local", "no"),
        ]
    ],
)
def test_inductor_is_eager(subject: str, given: str, backend: str, worlds: Worlds) -> None:
    """The default compiler, which sees the operators that the compiler of the tests above runs one by one."""
    check(worlds.get(backend, 2), subject, "inductor", given)


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=needs_triton)])
def test_compiled_reduce_scatter(compiler: str, backend: str, worlds: Worlds) -> None:
    """The adjoint compiles as well, with its gradient."""
    for right in worlds.get(backend, 2).run(compiled_reduce_scatter, compiler, ROUNDS[2][:3]):
        assert right == [True] * 3


def test_compiled_in_a_subgroup(backend: str, worlds: Worlds) -> None:
    """`group=` in a compiled region, among three ranks of which none is rank 0; the gradient too."""
    answers = worlds.get(backend, 4).run(compiled_group, [1, 2, 3])
    rows = [1.0] * 2 + [2.0] * 3 + [3.0] * 4
    gradients = [[6.0 * rank] * (rank + 1) for rank in range(4)]
    assert answers == [None, *[(rows, [2, 3, 4], gradients[rank]) for rank in (1, 2, 3)]]


def test_compiled_disagreement_raises_on_every_rank(backend: str, worlds: Worlds) -> None:
    """The agreement runs inside the compiled region, with the same words."""
    outcomes = worlds.get(backend, 2).run(compiled_disagreement)
    assert [outcome.error for outcome in outcomes] == ["DisagreementError"] * 2
    assert outcomes[0].message == outcomes[1].message
    assert "(2, 4)" in outcomes[0].message


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("shape", "(2, 4) torch.float32"),
        ("key", "['a', 'c']"),
        pytest.param("gradient", "requires_grad [True, False]", marks=needs_whole_graphs),
    ],
)
def test_compiled_dicts_that_clash_raise_on_every_rank(how: str, words: str, backend: str, worlds: Worlds) -> None:
    """Every tensor of a container is agreed on in a compiled region too, and which of them want a gradient."""
    outcomes = worlds.get(backend, 2).run(compiled_clash_in_a_dict, how)
    assert [outcome.error for outcome in outcomes] == ["DisagreementError"] * 2
    assert outcomes[0].message == outcomes[1].message
    assert words in outcomes[0].message
    fine = worlds.get(backend, 2).run(compiled_clash_in_a_dict, "not at all")
    assert [outcome.value for outcome in fine] == [True] * 2


@needs_whole_graphs
def test_compiled_ranks_that_differ_in_requires_grad_are_told(backend: str, worlds: Worlds) -> None:
    """No input is replaced in a compiled region: all ranks raise where only some want a summed gradient."""
    outcomes = worlds.get(backend, 2).run(compiled_wants, [True, False])
    assert [outcome.error for outcome in outcomes] == ["DisagreementError"] * 2
    assert "requires_grad False" in outcomes[0].message
    assert [o.value for o in worlds.get(backend, 2).run(compiled_wants, [False, False])] == [False] * 2


def test_compiled_sizes_that_do_not_fit_raise(backend: str, worlds: Worlds) -> None:
    """What a rank can see of given sizes it checks when the compiled region runs."""
    outcomes = worlds.get(backend, 2).run(compiled_wrong_sizes)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 2
    assert "(5, 5)" in outcomes[0].message


@pytest.mark.parametrize("subject", GATHERERS)
def test_compiled_and_eager_ranks_meet(subject: str, backend: str, worlds: Worlds) -> None:
    """A rank that falls back to eager enters the same collectives as those still compiled."""
    each = 6.0 if subject.endswith("sum") else 2.0
    answers = worlds.get(backend, 3).run(some_ranks_compiled, subject)
    doubled = [0.0, 2.0, 2.0, 4.0, 4.0, 4.0]
    assert answers == [doubled + [each] * (rank + 1) for rank in range(3)]


def test_compiled_and_eager_ranks_meet_with_a_dict(backend: str, worlds: Worlds) -> None:
    """The same for several tensors at once."""
    answers = worlds.get(backend, 3).run(some_ranks_compiled_with_a_dict)
    out = [50.0, 61.0, 61.0, 72.0, 72.0, 72.0]
    assert answers == [out + [6.0] * (rank + 1) + [60.0] * (rank + 1) for rank in range(3)]


@pytest.mark.suite("mirasol")
def test_mirasol_answers_while_compiling(backend: str, worlds: Worlds) -> None:
    """get_is_distributed() compiles whole, and its answer there is fresh."""
    assert worlds.get(backend, 2).run(stale_answers_while_compiling) == [{"asked": 1.0}] * 2
