# SPDX-License-Identifier: MIT
"""Rows to the ranks that need them: values, derivatives of every order, bad input, faults, torch.compile."""

import importlib
import os
import signal
from collections import OrderedDict
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from shared_distributed_tools.ranks.oracle import covering
from tests.core.exchange import (
    KINDS,
    Swap,
    counts_of,
    derivatives,
    derivatives_alone,
    gradient_of_swap,
    loss_of,
    start,
    swap_alone,
    swapped,
    swaps_of,
)
from tests.support import Deadlines, World, Worlds
from tests.support.calls import Outcome, attempt, make_tensor, usable_after
from tests.support.gather import DIFFERENTIABLE, scatter_in_memory
from tests.support.old_torch import WHOLE, needs_compile, needs_dtensor, needs_whole_graphs
from tests.support.oracle import same, upstream, values
from tests.support.watch import messages_sent, replaced, slots, watched
from tests.support.world import device, is_on_gpus

# ------------------------------------------------------------------ on ranks

call = importlib.import_module("shared_distributed._call")
choose = importlib.import_module("shared_distributed._choose")
gloo = importlib.import_module("shared_distributed._gloo")

WAYS = ("one round", "two rounds", "any backend", "no all-to-all")


class Without(call.AnyBackend):  # type: ignore[misc, name-defined]
    """A backend that has no all-to-all."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.backends = dict.fromkeys(self.backends, "of somebody else")


def by(way: str) -> ExitStack:
    """The rows with the headers, in a round after them, or over a backend of which nothing is known."""
    stack = ExitStack()
    if way != "one round":
        stack.enter_context(slots(0))
    if way == "any backend":
        stack.enter_context(replaced(choose, ["_way_of"], lambda *_: lambda *_: call.AnyBackend))
    if way == "no all-to-all":
        stack.enter_context(replaced(choose, ["_way_of"], lambda *_: lambda *_: Without))
    return stack


def given(case: Swap, rank: int) -> Any:
    """`received`, as a case passes it."""
    if case.received == "no":
        return None
    received = case.received_by(rank)
    return torch.tensor(received, device=device()) if case.received == "tensor" else list(received)


def run_swaps(way: str, cases: list[Swap]) -> list[tuple[Tensor, tuple[int, ...], Tensor | None]]:
    """Each case forward and, where the dtype has a gradient, backward."""
    with by(way):
        return [run_swap(case) for case in cases]


def run_swap(case: Swap) -> tuple[Tensor, tuple[int, ...], Tensor | None]:
    rank = dist.get_rank()
    sent = case.sent(rank)
    x = values(rank, case.shape(sum(sent)), case.dtype).to(device())
    x = x if case.contiguous else scatter_in_memory(x)
    before = x.clone()
    if case.dtype in DIFFERENTIABLE:
        x.requires_grad_()
    rows, received = core.all_to_all(x, sent, case.dim, received=given(case, rank))
    assert rows.is_contiguous()
    gradient = None
    if x.requires_grad:
        arriving = upstream(rank, rows.shape, case.dtype).to(device())
        arriving = arriving if case.contiguous else scatter_in_memory(arriving)
        kept = arriving.clone()
        (gradient,) = torch.autograd.grad(rows, x, arriving)
        assert arriving.tolist() == kept.tolist(), "the incoming gradient was written to"
    assert x.tolist() == before.tolist(), "the input was written to"
    return rows, received, gradient


def every_order(counts: Any, dim: int, way: str) -> list[Tensor]:
    """The first three derivatives of this rank's input."""
    rank = dist.get_rank()
    shape = [2, 2]
    shape[dim] = sum(counts[rank])
    with by(way):
        x = start(rank, shape).to(device()).detach().requires_grad_()
        rows, _ = core.all_to_all(x, counts[rank], dim)
        found = derivatives([x], [rank], [loss_of(rank, [rows])], 3)
    return [gradients[0] for gradients in found]


def linear_on_one_rank() -> Tensor:
    """A second derivative where rank 0's loss is linear, and has no second derivative of its own."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = start(rank, (world,)).to(device()).detach().requires_grad_()
    rows, _ = core.all_to_all(x, [1] * world)
    loss = rows.sum() if rank == 0 else (rows**3).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    return second


def of_containers() -> list[Any]:
    """A tuple, a dict and a list of tensors of unlike dtypes; and the gradient of the one that wants it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sent = counts_of("ragged", world)[rank]
    labels = values(rank, (sum(sent),), "int64").to(device())
    rows = values(rank, (sum(sent), 3), "float32").to(device()).requires_grad_()
    (some_labels, some_rows), received = core.all_to_all((labels, rows), sent)
    (gradient,) = torch.autograd.grad(some_rows, rows, upstream(rank, some_rows.shape, "float32").to(device()))
    keys = ["labels", "rows"] if rank % 2 else ["rows", "labels"]
    named = OrderedDict((key, {"labels": labels, "rows": rows}[key]) for key in keys)
    found, _ = core.all_to_all(named, sent, received=received)
    listed, _ = core.all_to_all([rows, labels], sent)
    assert type(found) is OrderedDict
    assert list(found) == keys
    assert torch.equal(found["labels"], listed[1])
    assert torch.equal(found["rows"], listed[0])
    return [some_labels, some_rows, gradient]


def lazy_views(way: str) -> list[Tensor]:
    """Lazily conjugated and negated tensors."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sent = [2] * world
    z = values(rank, (2 * world, 2), "complex64").to(device()) * (1 + 2j)
    with by(way):
        return [core.all_to_all(x, sent)[0].resolve_conj() for x in (z.conj(), z.conj().imag)]


def who_wants(wants: list[bool], enabled: list[bool]) -> Outcome:
    """The gradient of this rank's input where only some ranks want one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = values(rank, (world, 2), "float32").to(device()).requires_grad_(wants[rank])

    def run() -> Any:
        with torch.set_grad_enabled(enabled[rank]):
            rows, _ = core.all_to_all(x, [1] * world)
            if rows.requires_grad:
                rows.backward(upstream(rank, rows.shape, "float32").to(device()))
        return None if x.grad is None else x.grad.cpu()

    return usable_after(attempt(run))


def in_a_subgroup(members: list[int]) -> Any:
    """Ranks are counted within the group."""
    rank = dist.get_rank()
    group = dist.new_group(members)
    if rank not in members:
        return None
    place_in_group = members.index(rank)
    sent = counts_of("ragged", len(members))[place_in_group]
    x = values(place_in_group, (sum(sent), 3), "float32").to(device()).requires_grad_()
    rows, received = core.all_to_all(x, sent, group=group)
    (gradient,) = torch.autograd.grad(rows, x, upstream(place_in_group, rows.shape, "float32").to(device()))
    return rows, received, gradient


def bad_swap(by_rank: list[dict[str, Any]], check: bool) -> tuple[Outcome, list[float]]:
    """A call with arguments of each rank's own, then a valid one in the same group."""
    rank = dist.get_rank()
    spec = by_rank[rank]
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "1" if check else "0"
    x = spec["x"] if "x" in spec else make_tensor(spec)
    if "in_tuple" in spec:
        x = (x,)

    def run() -> None:
        if spec.get("operation") == "all_gather":
            core.all_gather(x)
        elif spec.get("operation") == "all_gather_each":
            core.all_gather_each(x)
        else:
            core.all_to_all(x, spec.get("sizes", [1, 1]), spec.get("dim", 0), received=spec.get("received"))

    outcome = attempt(run)
    os.environ["SHARED_DISTRIBUTED_CHECK"] = "0"
    good, _ = core.all_to_all(torch.full((2,), float(rank), device=device()), [1, 1])
    return outcome, good.tolist()


def collectives_of(case: Swap, room: int | None) -> tuple[list[tuple[str, int, int]], bool]:
    """What a call enters, and whether its answer is right."""
    rank = dist.get_rank()
    sent = case.sent(rank)
    x = values(rank, case.shape(sum(sent)), case.dtype)
    with ExitStack() as stack:
        if room is not None:
            stack.enter_context(slots(room))
        with watched() as calls:
            rows, received = core.all_to_all(x, sent, case.dim, received=given(case, rank))
    return list(calls), same(rows, swapped(case, rank)) and received == case.received_by(rank)


def bytes_sent(counts: Any) -> int:
    """How many bytes this rank hands over for rows, and with the headers."""
    rank = dist.get_rank()
    x = values(rank, (sum(counts[rank]), 4), "float32")
    with messages_sent() as sent:
        core.all_to_all(x, counts[rank])
    return sum(nbytes for _, nbytes in sent)


def lost(victim: int, stage: str) -> Outcome:
    """A rank is killed before the headers, before the rows, or before the backward."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()

    def strike(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == victim and stage == "headers":
        gloo.Gloo.exchange = strike
    if rank == victim and stage == "rows":
        gloo.Gloo.swap = strike
    x = torch.ones(world * 2, 60_000, requires_grad=True)

    def run() -> None:
        rows, _ = core.all_to_all(x, [2] * world)
        if rank == victim:
            strike()
        rows.sum().backward()

    return attempt(run)


def loss_of_rows(x: Tensor, sizes: Any, received: Any) -> tuple[Tensor, tuple[int, ...]]:
    rows, found = core.all_to_all(x, sizes, received=received)
    weights = torch.arange(1.0, rows.shape[0] + 1).unsqueeze(1)
    return (rows.sin() * weights).sum(), found


def compiled_like_eager(compiler: str, how: str, kinds: list[str], eager_ranks: list[int]) -> list[str]:
    """Differences between compiled and eager; some ranks stay eager all the time."""
    torch._dynamo.reset()
    rank, world = dist.get_rank(), dist.get_world_size()
    compiled = torch.compile(loss_of_rows, fullgraph=WHOLE, backend=compiler)
    if rank in eager_ranks:
        compiled = loss_of_rows
    wrong = []
    for kind in kinds:
        counts = counts_of(kind, world)
        x = (values(rank, (sum(counts[rank]), 3), "float32") / 50).requires_grad_()
        sizes: Any = torch.tensor(counts[rank]) if how == "sizes in a tensor" else list(counts[rank])
        received = [sent[rank] for sent in counts] if how == "received given" else None
        expected, expected_counts = loss_of_rows(x, sizes, received)
        (expected_gradient,) = torch.autograd.grad(expected, x)
        value, found = compiled(x, sizes, received)
        (gradient,) = torch.autograd.grad(value, x)
        if not torch.allclose(value, expected) or not torch.allclose(gradient, expected_gradient):
            wrong.append(f"{kind}: {value} {gradient} instead of {expected} {expected_gradient}")
        if list(found) != list(expected_counts):
            wrong.append(f"{kind}: received {found} instead of {expected_counts}")
    return wrong


def compiled_containers(eager_ranks: list[int]) -> tuple[list[str], bool]:
    """The collectives of two tensors in one call, where some ranks are compiled and others are not."""
    torch._dynamo.reset()
    rank, world = dist.get_rank(), dist.get_world_size()
    labels = values(rank, (world,), "int64")
    rows = values(rank, (world, 2), "float32").requires_grad_()

    def run(labels: Tensor, rows: Tensor) -> Tensor:
        (a, b), _ = core.all_to_all((labels, rows), [1] * world)
        return (a[:, None] * b).sum()

    compiled = run if rank in eager_ranks else torch.compile(run, fullgraph=WHOLE, backend="aot_eager")
    expected = torch.autograd.grad(run(labels, rows), rows)[0]
    with watched() as calls:
        loss = compiled(labels, rows)
    forward = [name for name, *_ in calls]
    return forward, torch.equal(torch.autograd.grad(loss, rows)[0], expected)


def compiled_bad(kind: str) -> Outcome:
    """The same error as eager, on every rank, out of a compiled region."""
    torch._dynamo.reset()
    rank = dist.get_rank()
    sizes: Any = [1, 1]
    x: Any = torch.ones(2, 3, requires_grad=True)
    if rank == 1:
        sizes = {"not adding up": [1, 5], "too many": [1, 1, 0], "not ints": [1, 0.5], "a number": 2}.get(kind, sizes)
        x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True) if kind == "dtype" else x
    compiled = torch.compile(loss_of_rows, fullgraph=WHOLE, backend="aot_eager")
    return usable_after(attempt(lambda: compiled(x, sizes, None)))


def swapped_of_every_dtype(way: str, names: list[str]) -> list[bool]:
    """Whether bytes come through, whatever dtype they are taken for."""
    rank, world = dist.get_rank(), dist.get_world_size()
    right = []
    with by(way):
        for name in names:
            by_rank = [values(r, (world, 4, 2), "uint8") for r in range(world)]
            x = by_rank[rank].view(-1).view(getattr(torch, name)).view(world, -1).to(device())
            rows, _ = core.all_to_all(x, [1] * world)
            found = rows.cpu().view(-1).view(torch.uint8).view(world, 8)
            expected = torch.stack([each.view(world, 8)[rank] for each in by_rank])
            right.append(rows.dtype == x.dtype and torch.equal(found, expected))
    return right


# ------------------------------------------------------------------ values and gradients


GLOO_ONLY = pytest.mark.only_over("gloo", reason="gloo's collectives are counted, or a way is forced on it")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [2, 3, 4], ids="W{}".format)
def test_rows_go_where_they_are_sent(way: str, ranks: int, backend: str, worlds: Worlds) -> None:
    """Any dim, kind of counts and dtype, `received` given or not, contiguous or not; the gradient goes back."""
    if backend != "gloo" and way not in ("one round", "two rounds"):
        pytest.skip("over gloo only: a way is forced on it")
    cases = swaps_of(ranks, covering, f"all_to_all {way}")
    cases += [Swap(counts_of(kind, ranks), dim) for kind in KINDS for dim in (0, 1)]
    for rank, results in enumerate(worlds.get(backend, ranks).run(run_swaps, way, cases)):
        for case, (rows, received, gradient) in zip(cases, results, strict=True):
            assert same(rows, swapped(case, rank)), case
            assert received == case.received_by(rank), case
            assert type(received) is tuple
            assert gradient is None or same(gradient, gradient_of_swap(case, rank)), case


DENSE = (
    "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16",
    "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn_x2", "bits8",
)  # fmt: skip


@pytest.mark.parametrize("way", ["one round", "two rounds", "no all-to-all"])
def test_every_dtype_is_sent_as_it_is(way: str, backend: str, worlds: Worlds) -> None:
    """Bit for bit, of one byte too."""
    if backend != "gloo" and way == "no all-to-all":
        pytest.skip("over gloo only: a way is forced on it")
    names = [name for name in DENSE if hasattr(torch, name)]
    for right in worlds.get(backend, 2).run(swapped_of_every_dtype, way, names):
        assert dict(zip(names, right, strict=True)) == dict.fromkeys(names, True)


@pytest.mark.parametrize("way", ["one round", "two rounds", "no all-to-all"])
@GLOO_ONLY
def test_lazily_conjugated_and_negated_rows(way: str, worlds: Worlds) -> None:
    """What is sent are the numbers that such a view stands for."""
    whole = [values(rank, (6, 2), "complex64") * (1 + 2j) for rank in range(3)]
    for rank, (conjugated, negated) in enumerate(worlds.get("gloo", 3).run(lazy_views, way)):
        expected = torch.cat([z.split([2, 2, 2])[rank] for z in whole]).conj().resolve_conj()
        assert same(conjugated, expected)
        assert same(negated, expected.imag)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["ragged", "one sends nothing", "skewed"])
@pytest.mark.parametrize("ranks", [2, 3], ids="W{}".format)
def test_derivatives_of_every_order(dim: int, kind: str, ranks: int, backend: str, worlds: Worlds) -> None:
    """The first three, against one process that does every rank's part."""
    counts = counts_of(kind, ranks)
    shapes = [(2, sum(sent)) if dim else (sum(sent), 2) for sent in counts]
    expected = derivatives_alone(shapes, swap_alone(counts, dim), 3)
    for way in ("one round", "two rounds"):
        for rank, found in enumerate(worlds.get(backend, ranks).run(every_order, counts, dim, way)):
            for order in range(3):
                torch.testing.assert_close(found[order].cpu(), expected[rank][order])


def test_a_linear_loss_on_one_rank_keeps_it_in_the_second_derivative(backend: str, worlds: Worlds) -> None:
    """Its gradient does not depend on its input; the other ranks' second derivatives need it all the same."""
    whole = torch.stack([start(rank, (3,)).detach() for rank in range(3)])
    factor = torch.tensor([0.0, 6.0, 6.0], dtype=torch.float64)
    for rank, second in enumerate(worlds.get(backend, 3).run(linear_on_one_rank)):
        torch.testing.assert_close(second.cpu(), whole[rank] * factor)


def test_containers(backend: str, worlds: Worlds) -> None:
    """A tuple, list or dict of tensors, in one call; dicts in any order; only one of the tensors has a gradient."""
    counts = counts_of("ragged", 3)
    for rank, (labels, rows, gradient) in enumerate(worlds.get(backend, 3).run(of_containers)):
        assert same(labels, swapped(Swap(counts, dtype="int64", other=(0,)), rank))
        assert same(rows, swapped(Swap(counts, other=(0, 3)), rank))
        assert same(gradient, gradient_of_swap(Swap(counts, other=(0, 3)), rank))


@pytest.mark.parametrize("wants", [(True, False, True), (False, True, False), (False, False, False)], ids=str)
def test_ranks_whose_input_needs_no_gradient_take_part(wants: tuple[bool, ...], backend: str, worlds: Worlds) -> None:
    """The others get their true gradient, and nothing hangs."""
    outcomes = worlds.get(backend, 3).run(who_wants, list(wants), [True] * 3)
    for rank, outcome in enumerate(outcomes):
        assert outcome.error == ""
        if wants[rank]:
            assert same(outcome.value, gradient_of_swap(Swap(((1, 1, 1),) * 3, other=(0, 2)), rank))
        else:
            assert outcome.value is None


def test_grad_modes_that_differ_are_an_error_on_every_rank(backend: str, worlds: Worlds) -> None:
    """Where some rank wants the gradient; where none does, nothing can hang."""
    outcomes = worlds.get(backend, 3).run(who_wants, [True] * 3, [True, False, True])
    assert [outcome.error for outcome in outcomes] == ["DisagreementError"] * 3
    assert len({outcome.message for outcome in outcomes}) == 1
    assert [o.error for o in worlds.get(backend, 3).run(who_wants, [False] * 3, [True, False, True])] == [""] * 3


@pytest.mark.parametrize("members", [[1, 2], [3, 0, 2]], ids=str)
@GLOO_ONLY
def test_subgroups(members: list[int], worlds: Worlds) -> None:
    """Counts, rows and gradients go by the ranks within the group."""
    found = worlds.get("gloo", 4).run(in_a_subgroup, sorted(members))
    case = Swap(counts_of("ragged", len(members)), other=(0, 3))
    for number, rank in enumerate(sorted(members)):
        rows, received, gradient = found[rank]
        assert same(rows, swapped(case, number))
        assert received == case.received_by(number)
        assert same(gradient, gradient_of_swap(case, number))


# ------------------------------------------------------------------ alone


def test_alone_the_input_comes_back() -> None:
    """Without a process group: the same tensor, and its one count. Bad counts are refused."""
    x = torch.ones(3, 2)
    assert core.all_to_all(x, [3])[0] is x
    assert core.all_to_all(x, torch.tensor([2]), 1, received=[2])[1] == (2,)
    both = (x, x[:, 0])
    assert core.all_to_all(both, [3])[0] is both
    for sizes, dim, received in (([2], 0, None), ([1, 2], 0, None), ([3], 0, [2]), ([3.0], 0, None), ([3], 5, None)):
        with pytest.raises(core.BadInputError):
            core.all_to_all(x, sizes, dim, received=received)  # type: ignore[arg-type]
    with pytest.raises(core.BadInputError):
        core.all_to_all(1.0, [3])  # type: ignore[type-var]


# ------------------------------------------------------------------ bad input

OK: dict[str, Any] = {"shape": (2, 3)}

ALONE_BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "too few sizes": ({"sizes": [2]}, ["rank 1 of 2", "sizes [2] for 2 ranks"]),
    "too many sizes": ({"sizes": [1, 1, 0]}, ["sizes [1, 1, 0] for 2 ranks"]),
    "negative sizes": ({"sizes": [3, -1]}, ["sizes [3, -1]"]),
    "sizes that do not add up": ({"sizes": [1, 2]}, ["sizes [1, 2] do not add up", "(2, 3)"]),
    "sizes that are no ints": ({"sizes": [1.5, 0.5]}, ["sizes [1.5, 0.5]", "float"]),
    "sizes in a tensor of floats": ({"sizes": torch.tensor([1.5, 0.5])}, ["float"]),
    "sizes in two dims": ({"sizes": torch.ones(2, 2, dtype=torch.long)}, ["list"]),
    "one number as sizes": ({"sizes": 2}, ["sizes 2", "int"]),
    "no sizes": ({"sizes": None}, ["sizes None"]),
    "huge sizes": ({"sizes": [10**30, 0]}, ["sizes [1000"]),
    "dim out of range": ({"dim": 2}, ["dim 2", "range of [-2, 1]"]),
    "dim not an int": ({"dim": "x"}, ["dim 'x'", "integer"]),
    "dim is None": ({"dim": None}, ["dim None", "integer"]),
    "not a tensor": ({"kind": "not a tensor"}, ["'float'", "dense torch.tensor"]),
    "sparse": ({"kind": "sparse"}, ["(2, 3)", "dense torch.tensor"]),
    "nested": ({"kind": "nested"}, ["dense torch.tensor"]),
    "lazy": ({"kind": "lazy"}, ["UninitializedParameter"]),
    "quantized": ({"kind": "quantized"}, ["qint8"]),
    "DTensor": ({"kind": "DTensor"}, ["DTensor"]),
    "on no served device": ({"kind": "meta"}, ["on {served}"]),
    "0-d": ({"shape": ()}, ["()", "no dimensions"]),
    "no tensors": ({"x": []}, ["expected tensors, got none"]),
    "unlike tensors": ({"x": [torch.ones(2), torch.ones(3)]}, ["do not add up"]),
}

RECEIVED_BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "too few": ({"received": [1]}, ["received [1] for 2 ranks"]),
    "negative": ({"received": [-1, 1]}, ["received [-1, 1] for 2 ranks"]),
    "no ints": ({"received": [0.5, 1]}, ["float"]),
    "not what this rank keeps": ({"received": [1, 2]}, ["rank 1 sends itself 1 rows"]),
    "one number": ({"received": 2}, ["int"]),
}

DISAGREE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "dtype": ({"dtype": "float64"}, ["float32", "float64", "dtype differs"]),
    "another dimension": ({"shape": (2, 4)}, ["(2, 3)", "(2, 4)", "shape differs"]),
    "ndim": ({"shape": (2, 3, 1)}, ["(2, 3, 1)"]),
    "dim": ({"shape": (2, 2), "dim": 1}, ["dim 0", "dim 1"]),
    "containers": ({"in_tuple": True}, ["all_to_all[1]"]),
    "all_gather": ({"operation": "all_gather"}, ["operation all_to_all", "operation all_gather"]),
    "all_gather_each": ({"operation": "all_gather_each"}, ["operation all_to_all", "all_gather_each of 2 dims"]),
}


def expect_same_error(
    worlds: Worlds, backend: str, specs: list[Any], error: str, words: list[str], check: bool
) -> None:
    answers = worlds.get(backend, 2).run(bad_swap, specs, check)
    assert [good for _, good in answers] == [[0.0, 1.0]] * 2, "the next valid call"
    outcomes = [outcome for outcome, _ in answers]
    assert {outcome.error for outcome in outcomes} == {error}, outcomes
    assert len({outcome.message for outcome in outcomes}) == 1
    assert [word for word in words if word not in outcomes[0].message] == [], outcomes[0].message


@pytest.mark.parametrize("kind", [pytest.param(k, marks=needs_dtensor) if k == "DTensor" else k for k in ALONE_BAD])
def test_one_ranks_bad_input_raises_everywhere(kind: str, backend: str, worlds: Worlds) -> None:
    """What one rank finds wrong with its call every rank raises, and the group stays usable."""
    bad, words = ALONE_BAD[kind]
    served = "cuda" if is_on_gpus(backend) else "cpu"
    words = [word.replace("{served}", served) for word in words]
    expect_same_error(worlds, backend, [OK, {**OK, **bad}], "BadInputError", words, False)


@pytest.mark.parametrize("kind", DISAGREE)
def test_disagreement_raises_everywhere(kind: str, backend: str, worlds: Worlds) -> None:
    """Calls that do not fit together, another operation among them, raise the same error on every rank."""
    bad, words = DISAGREE[kind]
    expect_same_error(worlds, backend, [OK, {**OK, **bad}], "DisagreementError", words, False)


@pytest.mark.parametrize("kind", RECEIVED_BAD)
def test_bad_received_raises_everywhere_with_the_check_on(kind: str, backend: str, worlds: Worlds) -> None:
    """SHARED_DISTRIBUTED_CHECK=1: the full exchange where `received` is given, too."""
    bad, words = RECEIVED_BAD[kind]
    good = {**OK, "received": [1, 1]}
    expect_same_error(worlds, backend, [good, {**OK, **bad}], "BadInputError", words, True)


def test_received_that_the_others_do_not_send(backend: str, worlds: Worlds) -> None:
    """No rank can see it by itself; with the check on, every rank hears of it."""
    words = ["received [0, 1], but the other ranks send [1, 1]"]
    specs = [{**OK, "received": [1, 1]}, {**OK, "received": [0, 1]}]
    expect_same_error(worlds, backend, specs, "BadInputError", words, True)


def test_received_on_some_ranks_only(backend: str, worlds: Worlds) -> None:
    """With the check on: the same error on every rank."""
    words = ["all_to_all with received", "all_to_all without received"]
    expect_same_error(worlds, backend, [{**OK, "received": [1, 1]}, OK], "DisagreementError", words, True)


@pytest.mark.parametrize("kind", RECEIVED_BAD)
def test_bad_received_without_the_check(kind: str, backend: str, worlds: Worlds) -> None:
    """Nothing is exchanged, so it raises on the rank that sees it; here on both."""
    bad, words = RECEIVED_BAD[kind]
    mirrored = {**bad, "received": [2, 1]} if kind == "not what this rank keeps" else bad
    answers = worlds.get(backend, 2).run(bad_swap, [{**OK, **mirrored}, {**OK, **bad}], False)
    assert [outcome.error for outcome, _ in answers] == ["BadInputError"] * 2
    assert [word for word in words if word not in answers[1][0].message] == [], answers[1][0].message


# ------------------------------------------------------------------ what is sent


RAGGED = Swap(counts_of("ragged", 4), other=(0, 16))
WIDE = RAGGED._replace(other=(0, 40_000))  # 160 kB a row


@pytest.mark.parametrize(
    ("case", "room", "expected"),
    [
        (RAGGED, None, ["send_to_first"]),
        (RAGGED._replace(received="list"), None, ["all_to_all_single"]),
        (WIDE, None, ["send_to_first", "all_to_all_single"]),
        (RAGGED, 4 * 32, ["send_to_first", "all_to_all_single"]),
        (RAGGED, 4 * 16, ["send_to_first", "all_to_all_single", "all_to_all_single"]),
    ],
    ids=["small", "received given", "large", "room for the counts only", "no room for the counts"],
)
@GLOO_ONLY
def test_collectives_are_counted(case: Swap, room: int | None, expected: list[str], worlds: Worlds) -> None:
    """Counts come with the header where they fit, and so do small rows; with `received` nothing precedes the rows."""
    for calls, right in worlds.get("gloo", 4).run(collectives_of, case, room):
        assert [name for name, *_ in calls] == expected
        assert right


@pytest.mark.parametrize("dim", [0, 1])
@GLOO_ONLY
def test_only_real_rows_are_sent(dim: int, worlds: Worlds) -> None:
    """One rank sends nearly everything; each hands over and takes in exactly its bytes."""
    counts = ((0, 9000, 3), (1, 0, 0), (0, 2, 5))
    case = Swap(counts, dim, other=(16, 16), received="list")
    for rank, (calls, right) in enumerate(worlds.get("gloo", 3).run(collectives_of, case, None)):
        assert right
        (_, sent, received) = calls[0]
        assert (sent, received) == (sum(counts[rank]) * 64, sum(row[rank] for row in counts) * 64)


@GLOO_ONLY
def test_small_rows_are_sent_without_padding(worlds: Worlds) -> None:
    """The first rank receives each rank's header, counts and rows, and sends all of them along a tree."""
    counts = ((1, 0, 3), (0, 0, 0), (5, 1, 1))
    up = [48 + 8 * 3 + 8 + sum(sent) * 16 if sum(sent) else 80 for sent in counts]
    total = sum(up)
    assert worlds.get("gloo", 3).run(bytes_sent, counts) == [2 * total, up[1], up[2]]


# ------------------------------------------------------------------ faults


@pytest.mark.parametrize("stage", ["headers", "rows", "backward"])
@pytest.mark.only_over("gloo", reason="NCCL's watchdog ends the process")
def test_a_killed_rank_is_an_error_on_the_others(stage: str) -> None:
    """A TransportError that names the operation and the silent rank."""
    with World(3, deadlines=Deadlines(collective=4.0, case=60.0)) as world:
        outcomes = world.try_run(lost, 1, stage, lost=[1])
    for rank in (0, 2):
        assert outcomes[rank].error == "TransportError", outcomes[rank]
        assert "exchange of sizes" in outcomes[rank].message or "all-to-all" in outcomes[rank].message
        (silent,) = [line for line in outcomes[rank].message.splitlines() if line.startswith("No report from ranks")]
        assert "1" in silent.partition(" within ")[0], silent


# ------------------------------------------------------------------ torch.compile


@needs_compile
@pytest.mark.parametrize("eager_ranks", [[], [0]], ids=["all compiled", "one eager"])
@pytest.mark.parametrize("how", ["received given", "received not given", "sizes in a tensor"])
@GLOO_ONLY
def test_compiled_like_eager(how: str, eager_ranks: list[int], worlds: Worlds) -> None:
    """In one graph, with the same values and gradients over several counts; compiled and eager ranks meet."""
    kinds = ["ragged", "even", "skewed", "one sends nothing"]
    assert worlds.get("gloo", 2).run(compiled_like_eager, "aot_eager", how, kinds, eager_ranks) == [[], []]


@needs_compile
@GLOO_ONLY
def test_inductor(worlds: Worlds) -> None:
    """Compiled to machine code."""
    found = worlds.get("gloo", 2).run(compiled_like_eager, "inductor", "received not given", ["ragged", "even"], [])
    assert found == [[], []]


@needs_compile
@pytest.mark.parametrize("eager_ranks", [[], [1]], ids=["all compiled", "one eager"])
@GLOO_ONLY
def test_compiled_containers_take_one_round_too(eager_ranks: list[int], worlds: Worlds) -> None:
    """The rows of both tensors come with the header there as well, so that a compiled and an eager rank meet."""
    assert worlds.get("gloo", 2).run(compiled_containers, eager_ranks) == [(["send_to_first"], True)] * 2


@needs_whole_graphs
@pytest.mark.parametrize("kind", ["not adding up", "too many", "not ints", "a number", "dtype"])
@GLOO_ONLY
def test_compiled_bad_input_raises_everywhere(kind: str, worlds: Worlds) -> None:
    """Out of the graph as well, the same error on every rank."""
    outcomes = worlds.get("gloo", 2).run(compiled_bad, kind)
    expected = "DisagreementError" if kind == "dtype" else "BadInputError"
    assert [outcome.error for outcome in outcomes] == [expected] * 2, outcomes
    assert outcomes[0].message == outcomes[1].message
