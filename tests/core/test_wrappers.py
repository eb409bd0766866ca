# SPDX-License-Identifier: MIT
"""Gathers inside what training loops put around them: right gradients, or a clear error on every rank.

Each test is a row of the table "Works with" in docs/promises.md. Parameter gradients are compared with one process
that holds every rank's batch: the gradient of the mean over ranks of their losses.
"""

import pytest
import torch

from tests.core.wrappers import (
    Gradients,
    Scorer,
    Surroundings,
    autocast,
    autocast_on_some,
    compiled_and_left_out,
    compiled_pair,
    input_from_inference_mode,
    loss_on,
    loss_on_one_of_two,
    losses_of_several,
    mixed,
    modes_by_rank,
    pair_of,
    rows_of,
    train,
    train_with_large_sums,
    weighed,
    without_gradient,
)
from tests.support import Deadlines, World, Worlds
from tests.support.adapters import SUBJECTS, marked
from tests.support.old_torch import OLD, VERSION, needs_compile, needs_fsdp_on_cpu
from tests.support.oracle import values

pytestmark = pytest.mark.only_over("gloo", "nccl", reason="DDP and FSDP call collectives that nccl-rules has not")
WITHOUT_WRAPPER = pytest.mark.only_over("gloo", "nccl-rules", "nccl", reason="no wrapper calls other collectives")
COUNTED = pytest.mark.only_over("gloo", reason="gloo's collectives are counted")

BATCHES = [(3, 1, 2), (2, 0, 4)]  # sizes by rank, of two batches in a row
WORLD = len(BATCHES[0])
SUMMED = ("core sum", "musiclm sum")


def gradients_in_one_process(around: Surroundings) -> Gradients:
    """What every rank should hold, batch upon batch; where the gradient is local, others' rows are constants."""
    model = Scorer(around, lambda gathered, _: gathered)
    for sizes in BATCHES:
        with autocast(around.amp):
            encoded = [model.encoded(rank, rows_of(around, rank, sizes)) for rank in range(WORLD)]
        for rank in range(WORLD):
            seen = [e if around.subject.endswith("sum") or r == rank else e.detach() for r, e in enumerate(encoded)]
            with autocast(around.amp):
                scores = model.score(torch.cat(seen))
            (loss_on(rank, scores) / WORLD).backward(retain_graph=True)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def check(worlds: Worlds, backend: str, around: Surroundings, tolerance: float = 1e-9) -> list[list[str]]:
    """Gradients of every parameter on every rank; what each rank's last backward called."""
    expected = gradients_in_one_process(around)
    answers = worlds.get(backend, WORLD).run(train, around, BATCHES)
    for gradients, _ in answers:
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            error = (gradient - expected[name]).abs().max() / expected[name].abs().max()
            assert error < tolerance, f"{name}: {gradient} instead of {expected[name]}"
    return [calls for _, calls in answers]


# ------------------------------------------------------------------ wrappers


@pytest.mark.parametrize("own_group", ["", "DDP"], ids=["shared group", "own group"])
@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_ddp(subject: str, own_group: str, backend: str, worlds: Worlds) -> None:
    """The mean over ranks of the right gradient, whether DDP's collectives and ours share a group or not."""
    check(worlds, backend, Surroundings(subject, own_group=own_group))


@pytest.mark.parametrize("subject", ["core sum", "core local"])
def test_ddp_beside_a_gather_with_a_group_of_its_own(subject: str, backend: str, worlds: Worlds) -> None:
    """`group=`: the same."""
    check(worlds, backend, Surroundings(subject, own_group="gather"))


@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_gradient_accumulation_with_no_sync(subject: str, backend: str, worlds: Worlds) -> None:
    """A batch under `no_sync` and one without: the sum of both, with a gather and its backward in each."""
    check(worlds, backend, Surroundings(subject, no_sync=True))


@pytest.mark.only_over("gloo", reason="NCCL needs more: tests/nccl/test_unused_parameters.py")
def test_parameters_that_only_some_ranks_use(backend: str, worlds: Worlds) -> None:
    """`find_unused_parameters`: right with a group of the gather's own."""
    check(worlds, backend, Surroundings("core sum", own_group="gather", detour=(0,)))


@pytest.mark.only_over("gloo", reason="NCCL hangs there, as docs/promises.md says")
@pytest.mark.skipif(VERSION < (2, 4), reason=f"DDP of {OLD} keeps the order here")
def test_parameters_that_only_some_ranks_use_need_a_second_group() -> None:
    """DDP sends what a rank left out at once, before a large sum there and after it elsewhere: every rank is told."""
    with World(WORLD, deadlines=Deadlines(collective=2.0, case=25.0)) as world:
        answers = world.try_run(train_with_large_sums, Surroundings("core sum", detour=(0,)), BATCHES)
        assert [answer.type for answer in answers] == ["TransportError"] * WORLD
        assert all("sum over ranks" in answer.message for answer in answers)


@needs_fsdp_on_cpu
@pytest.mark.parametrize("wrapper", ["FSDP", "fully_shard"])
@pytest.mark.parametrize("subject", marked(("core sum", "core local", "musiclm sum", "st-moe local")))
def test_fsdp(subject: str, wrapper: str, backend: str, worlds: Worlds) -> None:
    """Sharded parameters, either generation: their gradients, made whole, are the same as DDP's."""
    check(worlds, backend, Surroundings(subject, wrapper))


# ------------------------------------------------------------------ recomputation


@pytest.mark.parametrize("given", [False, True], ids=["sizes not given", "sizes given"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_activation_checkpointing(subject: str, reentrant: bool, given: bool, backend: str, worlds: Worlds) -> None:
    """The backward runs the forward's gather again, on every rank, and gives the same gradients."""
    seen = check(worlds, backend, Surroundings(subject, reentrant=reentrant, given=given))
    if backend == "gloo":
        # the gather again, with the exchange of sizes if there is one, and the sum
        assert seen == [["send_to_first"] + ["send_to_first"] * subject.endswith("sum")] * WORLD


# ------------------------------------------------------------------ autocast and modes


@pytest.mark.parametrize("subject", marked(SUBJECTS))
def test_autocast(subject: str, backend: str, worlds: Worlds) -> None:
    """Rows are gathered in bfloat16; gradients are those of autocast in one process."""
    check(
        worlds, backend, Surroundings(subject, amp=True), tolerance=0.1
    )  # bfloat16 has 8 bits, and sums in another order
    answers = worlds.get(backend, 3).run(autocast_on_some, subject, [True] * 3, (2, 0, 1))
    assert [outcome.value for outcome, _ in answers] == [torch.bfloat16] * 3


@pytest.mark.parametrize("subject", marked(SUBJECTS))
@WITHOUT_WRAPPER
def test_autocast_on_some_ranks_only(subject: str, backend: str, worlds: Worlds) -> None:
    """Outputs that differ in dtype: the same error on every rank, naming both, and the group goes on."""
    answers = worlds.get(backend, 3).run(autocast_on_some, subject, [True, False, True], (2, 0, 1))
    assert [outcome.error for outcome, _ in answers] == ["DisagreementError"] * 3
    assert len({outcome.message for outcome, _ in answers}) == 1
    assert "rank 0" in answers[0][0].message
    assert "bfloat16" in answers[0][0].message
    assert "float32" in answers[0][0].message
    assert [after for _, after in answers] == [[0.0, 0.0, 2.0]] * 3


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
@pytest.mark.parametrize("subject", marked(SUBJECTS))
@WITHOUT_WRAPPER
def test_modes_that_record_nothing(subject: str, mode: str, backend: str, worlds: Worlds) -> None:
    """Values as ever, no gradient; sizes from there go back in; what was made there is gathered outside as well."""
    sizes = (2, 0, 3)
    parts = torch.cat([values(rank, (n, 3), "float32") for rank, n in enumerate(sizes)])
    for seen in worlds.get(backend, 3).run(without_gradient, subject, mode, sizes):
        assert torch.equal(seen["gathered"], parts * 2)
        assert torch.equal(seen["outside"], parts * 3)
        assert seen["again"]
        assert seen["sizes"] == list(sizes)
        assert seen["requires_grad"] == (False, False)


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
@pytest.mark.parametrize("subject", marked(SUBJECTS))
@WITHOUT_WRAPPER
def test_modes_that_differ_by_rank(subject: str, mode: str, backend: str, worlds: Worlds) -> None:
    """A summed gradient: every rank is told. A local one: those that record get theirs."""
    outcomes = worlds.get(backend, 3).run(modes_by_rank, subject, ["grad", mode, "grad"])
    if subject.endswith("sum"):
        assert [outcome.error for outcome in outcomes] == ["DisagreementError"] * 3
        assert len({outcome.message for outcome in outcomes}) == 1
        lines = outcomes[0].message.splitlines()[1:4]
        assert ["grad_enabled=False" in line for line in lines] == [False, True, False]
        assert all(f"rank {rank} of 3" in line and "float32" in line for rank, line in enumerate(lines))
    else:
        assert [outcome.value for outcome in outcomes] == [[1.0], None, [4.0, 5.0, 6.0]]


@pytest.mark.parametrize("subject", marked(SUMMED))
@WITHOUT_WRAPPER
def test_an_input_from_inference_mode_on_one_rank(subject: str, backend: str, worlds: Worlds) -> None:
    """It takes part in the others' summed gradient like any input that needs none."""
    answers = worlds.get(backend, 3).run(input_from_inference_mode, subject, 1)
    assert [gathered for gathered, _ in answers] == [[0.0, 1.0, 1.0, 2.0, 2.0, 2.0]] * 3
    assert [gradient for _, gradient in answers] == [[6.0], None, [6.0] * 3]


# ------------------------------------------------------------------ several gathers


@pytest.mark.parametrize("subject", marked(SUMMED))
@COUNTED
def test_several_gathers_in_one_backward(subject: str, worlds: Worlds) -> None:
    """Autograd undoes gathers in reverse order of their calls on every rank, however each one composes its loss."""
    sizes = (3, 1, 2)
    pairs = [[part.requires_grad_() for part in pair_of(rank, sizes)] for rank in range(3)]
    first, second = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    third = torch.cat([mixed(rank, first, b, sizes) for rank, (_, b) in enumerate(pairs)])
    total = sum(weighed(rank, gathered) for rank in range(3) for gathered in (first, second, third))
    expected = [torch.autograd.grad(total, pair, retain_graph=True) for pair in pairs]
    column = sum(sizes) * 8
    for (gradients, sent), wanted in zip(
        worlds.get("gloo", 3).run(losses_of_several, subject, sizes), expected, strict=True
    ):
        torch.testing.assert_close(gradients, wanted)
        assert sent == [3 * column, 2 * column, 1 * column]


@WITHOUT_WRAPPER
def test_gathers_that_a_loss_leaves_out(backend: str, worlds: Worlds) -> None:
    """Gathered as one tuple, every rank enters every sum, whichever of the tensors its loss looks at."""
    answers = worlds.get(backend, 3).run(loss_on_one_of_two)
    assert answers == [[[1.0] * n, [110.0] * n] for n in (1, 2, 3)]


@needs_compile
@pytest.mark.parametrize("given", [False, True], ids=["sizes not given", "sizes given"])
@COUNTED
def test_two_gathers_in_one_compiled_region(given: bool, worlds: Worlds) -> None:
    """Every rank runs them in the order in which they were written, whatever its compiler makes of the rest."""
    sizes = (2, 3)
    headers = [] if given else [2 * 48]
    for order, like_eager in worlds.get("gloo", 2).run(compiled_pair, given, sizes):
        assert order == [*headers, sizes[0] * 12 * 4, *headers, sizes[0] * 300 * 4]
        assert like_eager


@needs_compile
@pytest.mark.parametrize("given", [False, True], ids=["sizes not given", "sizes given"])
@WITHOUT_WRAPPER
def test_a_compiled_gather_that_a_rank_leaves_out(given: bool, backend: str, worlds: Worlds) -> None:
    """A rank that does not look at the gathered tensor still takes part, as it does in eager mode."""
    answers = worlds.get(backend, 2).run(compiled_and_left_out, given, (2, 3))
    assert answers == [[10.0, 10.0], [4.0, 4.0, 4.0]]
