# SPDX-License-Identifier: MIT
"""First and second derivatives, against finite differences and against one process."""

import pytest
import torch

from tests.adapters.gradients import (
    bytes_kept_alive,
    check_global_function,
    derivatives,
    expanded_gradient,
    loss_of,
    part_of,
    some_want_the_gradient,
    unused_parts,
)
from tests.support import Worlds
from tests.support.adapters import SUBJECTS, marked
from tests.support.oracle import values

SUMMED = ["core sum", "musiclm sum", "reduce_scatter"]


@pytest.mark.parametrize(("dim", "sizes"), [(0, (1, 3, 0)), (1, (2, 2, 2))], ids=str)
@pytest.mark.parametrize("subject", marked(SUMMED))
@pytest.mark.only_over("gloo", "nccl", reason="thousands of calls; the next test checks both derivatives here")
def test_gradcheck_of_the_global_function(
    subject: str, dim: int, sizes: tuple[int, ...], backend: str, worlds: Worlds
) -> None:
    """Finite differences agree with the first and the second derivative of gather and of its adjoint."""
    answers = worlds.get(backend, 3).run(check_global_function, subject, sizes, dim)
    assert answers == [(True, True)] * 3


@pytest.mark.parametrize("sizes", [(2, 3), (1, 3, 0), (2, 1, 0, 3)], ids=str)
@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_first_and_second_derivatives(subject: str, sizes: tuple[int, ...], backend: str, worlds: Worlds) -> None:
    """`sum`: the derivative of all ranks' losses together. `local`: own slice of the derivative of one's own."""
    world = len(sizes)
    answers = worlds.get(backend, world).run(derivatives, subject, sizes)
    whole = torch.cat([part_of(rank, sizes) for rank in range(world)]).requires_grad_()
    weights = torch.cat([values(rank + 1, (sizes[rank], 2), "float64") / 50 for rank in range(world)])

    if subject.endswith("sum"):
        (first,) = torch.autograd.grad(sum(loss_of(r, whole) for r in range(world)), whole, create_graph=True)
        (second,) = torch.autograd.grad((weights * first).sum(), whole)
        expected = list(zip(first.detach().split(sizes), second.split(sizes), strict=True))
    else:
        expected = []
        for rank in range(world):
            (first,) = torch.autograd.grad(loss_of(rank, whole), whole, create_graph=True)
            own = first.split(sizes)[rank]
            (second,) = torch.autograd.grad((weights.split(sizes)[rank] * own).sum(), whole)
            expected.append((own.detach(), second.split(sizes)[rank]))
    for answer, wanted in zip(answers, expected, strict=True):
        torch.testing.assert_close(answer, wanted)


@pytest.mark.parametrize("sizes", [(2, 3), (1, 0, 4), (9, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_an_expanded_gradient_gives_the_right_answer(
    subject: str, sizes: tuple[int, ...], backend: str, worlds: Worlds
) -> None:
    """`y.sum().backward()` sends a stride-0 gradient: the original died of heap corruption here."""
    world = len(sizes)
    each = float(world) if subject.endswith("sum") else 1.0
    for rank, (gradient, _) in enumerate(worlds.get(backend, world).run(expanded_gradient, subject, sizes)):
        assert gradient == [[each] * 3] * sizes[rank]


@pytest.mark.parametrize("subject", marked(["core sum", "musiclm sum"]))
def test_a_summed_gradient_keeps_no_other_ranks_rows_alive(subject: str, backend: str, worlds: Worlds) -> None:
    """It is no view of the sum of all rows, which has W times its memory."""
    assert worlds.get(backend, 3).run(bytes_kept_alive, subject) == [4] * 3


@pytest.mark.parametrize("subject", marked(["core sum", "musiclm sum"]))
def test_unused_parts_of_the_output_count_as_zero(subject: str, backend: str, worlds: Worlds) -> None:
    """Ranks that look at different elements still meet in one backward."""
    assert worlds.get(backend, 2).run(unused_parts, subject) == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("wants", [[True, False, False], [False, True, True], [False, False, False]], ids=str)
@pytest.mark.parametrize("subject", marked(["core sum", "musiclm sum"]))
def test_all_ranks_enter_the_summed_backward_if_any_wants_it(
    subject: str, wants: list[bool], backend: str, worlds: Worlds
) -> None:
    """A rank whose input needs no gradient takes part for those whose does."""
    world = worlds.get(backend, 3)
    if not any(wants):
        answers = world.try_run(some_want_the_gradient, subject, wants)
        assert all("does not require grad" in answer.message for answer in answers)
        return
    answers = world.run(some_want_the_gradient, subject, wants)
    assert all(requires for requires, _ in answers)
    expected = [[6.0], [12.0, 18.0], [24.0, 30.0, 36.0]]  # 1 + 2 + 3 times the position, counted from 1
    assert [gradient for _, gradient in answers] == [e if w else None for e, w in zip(expected, wants, strict=True)]
