# SPDX-License-Identifier: MIT
"""Every rank's tensor in its own shape: values, both gradients, derivatives of every order, bad input, faults."""

import importlib
import os
import signal
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.core.exchange import derivatives, derivatives_alone, loss_of, shapes_of, start
from tests.support import Deadlines, World, Worlds
from tests.support.calls import Outcome, attempt, make_tensor, usable_after
from tests.support.gather import DIFFERENTIABLE, scatter_in_memory
from tests.support.old_torch import needs_compile, needs_dtensor
from tests.support.oracle import DTYPES, same, upstream, values
from tests.support.watch import messages_sent, replaced, slots, watched
from tests.support.world import device

# ------------------------------------------------------------------ on ranks

call = importlib.import_module("shared_distributed._call")
choose = importlib.import_module("shared_distributed._choose")
gloo = importlib.import_module("shared_distributed._gloo")

KINDS = ("ragged", "equal", "1-d", "one empty", "0-d")
WAYS = ("one round", "two rounds", "any backend")


def by(way: str) -> ExitStack:
    """The elements with the headers, in a round after them, or over a backend of which nothing is known."""
    stack = ExitStack()
    if way != "one round":
        stack.enter_context(slots(0))
    if way == "any backend":
        stack.enter_context(replaced(choose, ["_way_of"], lambda *_: lambda *_: call.AnyBackend))
    return stack


def run_each(way: str, dtypes: list[str], kinds: list[str], is_contiguous: bool) -> list[Any]:
    """The tensors of each case and, where the dtype has one, the gradient of each mode."""
    rank, world = dist.get_rank(), dist.get_world_size()
    results = []
    with by(way):
        for dtype in dtypes:
            for kind in kinds:
                x = values(rank, shapes_of(kind, world)[rank], dtype).to(device())
                x = x if is_contiguous else scatter_in_memory(x)
                results.append((core.all_gather_each(x), gradients_of(x) if dtype in DIFFERENTIABLE else {}))
    return results


def gradients_of(x: Tensor) -> dict[str, Tensor]:
    """This rank's gradient in each mode, where every rank has an upstream gradient for every tensor."""
    rank = dist.get_rank()
    found = {}
    for grad in ("sum", "local"):
        leaf = x.detach().clone().requires_grad_()
        parts = core.all_gather_each(leaf, grad=grad)  # type: ignore[arg-type]
        arriving = [upstream(rank + 3 * i, part.shape, str(x.dtype)[6:]).to(device()) for i, part in enumerate(parts)]
        (found[grad],) = torch.autograd.grad(parts, leaf, arriving)
    return found


def every_order(kind: str, way: str) -> list[Tensor]:
    """The first three derivatives of this rank's input."""
    rank, world = dist.get_rank(), dist.get_world_size()
    with by(way):
        x = start(rank, shapes_of(kind, world)[rank]).to(device()).detach().requires_grad_()
        found = derivatives([x], [rank], [loss_of(rank, core.all_gather_each(x))], 3)
    return [gradients[0] for gradients in found]


def storages() -> tuple[int, list[float]]:
    """How many storages the tensors have, and that one of them can be written to without the others."""
    rank = dist.get_rank()
    parts = core.all_gather_each(torch.full((rank + 1,), float(rank), device=device()))
    parts[0].add_(10)
    pointers = {part.untyped_storage().data_ptr() for part in parts}
    assert all(part.untyped_storage().nbytes() == part.numel() * 4 for part in parts)
    return len(pointers), torch.cat(parts).tolist()


def who_wants(wants: list[bool], enabled: list[bool]) -> Outcome:
    """The summed gradient where only some ranks want one, and use only the first tensor."""
    rank = dist.get_rank()
    x = torch.ones(rank + 1, 2, device=device(), requires_grad=wants[rank])

    def run() -> Any:
        with torch.set_grad_enabled(enabled[rank]):
            first, *_ = core.all_gather_each(x)
            if first.requires_grad:
                first.backward(torch.full_like(first, rank + 1.0))
        return None if x.grad is None else x.grad.tolist()

    return usable_after(attempt(run))


def in_a_subgroup(members: list[int]) -> Any:
    group = dist.new_group(members)
    rank = dist.get_rank()
    if rank not in members:
        return None
    return core.all_gather_each(torch.full((rank, 2), float(rank)), group=group)


def bad_each(by_rank: list[dict[str, Any]]) -> tuple[Outcome, list[float]]:
    """A call with arguments of each rank's own, then a valid one in the same group."""
    rank = dist.get_rank()
    spec = by_rank[rank]
    x = make_tensor(spec)
    if spec.get("kind") == "freed":
        x.untyped_storage().resize_(0)
    run: Any = {"all_gather": core.all_gather, "all_gather_same_dim": core.all_gather_same_dim}
    function = run.get(spec.get("operation"), core.all_gather_each)
    outcome = attempt(lambda: function(x, **spec.get("options", {})) and None)
    good = core.all_gather_each(torch.full((rank + 1,), float(rank), device=device()))
    return outcome, torch.cat(good).tolist()


def collectives_of(shapes: list[tuple[int, ...]], room: int | None) -> tuple[list[tuple[str, int, int]], int, bool]:
    """What a call enters, the bytes of its messages to one other rank, and whether its answer is right."""
    rank = dist.get_rank()
    x = values(rank, shapes[rank], "float32")
    with ExitStack() as stack:
        if room is not None:
            stack.enter_context(slots(room))
        calls = stack.enter_context(watched())
        sent = stack.enter_context(messages_sent())
        parts = core.all_gather_each(x)
    right = all(same(part, values(r, shapes[r], "float32")) for r, part in enumerate(parts))
    return list(calls), sum(nbytes for _, nbytes in sent), right


def lost(victim: int, stage: str) -> Outcome:
    """A rank is killed before the headers, or before the elements."""
    rank = dist.get_rank()
    dist.barrier()

    def strike(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == victim:
        setattr(gloo.Gloo, {"headers": "exchange", "elements": "send_rows"}[stage], strike)
    return attempt(lambda: core.all_gather_each(torch.ones(rank + 1, 400_000)))


def compiled(eager_ranks: list[int]) -> bool:
    """Whether a graph with a break at the call gives the same, and the gradient."""
    torch._dynamo.reset()
    rank = dist.get_rank()
    x = values(rank, (rank + 1, 2), "float32").requires_grad_()

    def loss(x: Tensor) -> Tensor:
        total = x.sum() * 0
        for number, part in enumerate(core.all_gather_each(x * 2)):
            total = total + (part.sin() * (rank + number + 1)).sum()
        return total

    run = loss if rank in eager_ranks else torch.compile(loss, backend="aot_eager")
    expected, found = (torch.autograd.grad(each(x), x)[0] for each in (loss, run))
    return torch.allclose(expected, found)


# ------------------------------------------------------------------ values and gradients


GLOO_ONLY = pytest.mark.only_over("gloo", reason="gloo's collectives are counted, or a way is forced on it")


def gradient_alone(kind: str, dtype: str, rank: int, world: int, grad: str) -> Tensor:
    """This rank's part of the upstream gradient: its own, or the sum of all ranks'."""
    shape = shapes_of(kind, world)[rank]
    if grad == "local":
        return upstream(rank + 3 * rank, shape, dtype)
    arriving = [upstream(other + 3 * rank, shape, dtype) for other in range(world)]
    wide = torch.float32 if arriving[0].element_size() < 4 else arriving[0].dtype
    return torch.stack([each.to(wide) for each in arriving]).sum(0).to(arriving[0].dtype)


@pytest.mark.parametrize("is_contiguous", [True, False], ids=["contiguous", "strided"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [2, 3, 5], ids="W{}".format)
def test_every_tensor_as_it_was(way: str, ranks: int, is_contiguous: bool, backend: str, worlds: Worlds) -> None:
    """Ranks differ in every size, 0 dims included, in every dtype; both gradients."""
    if backend != "gloo" and way == "any backend":
        pytest.skip("over gloo only: a way is forced on it")
    dtypes = list(DTYPES)
    cases = [(dtype, kind) for dtype in dtypes for kind in KINDS]
    answers = worlds.get(backend, ranks).run(run_each, way, dtypes, list(KINDS), is_contiguous)
    for rank, results in enumerate(answers):
        for (dtype, kind), (parts, gradients) in zip(cases, results, strict=True):
            expected = [values(r, shape, dtype) for r, shape in enumerate(shapes_of(kind, ranks))]
            assert len(parts) == ranks
            assert all(map(same, parts, expected)), (dtype, kind)
            for grad, found in gradients.items():
                assert same(found, gradient_alone(kind, dtype, rank, ranks, grad)), (dtype, kind, grad)


@pytest.mark.parametrize("kind", ["ragged", "one empty", "0-d"])
@pytest.mark.parametrize("ranks", [2, 3], ids="W{}".format)
def test_derivatives_of_every_order(kind: str, ranks: int, backend: str, worlds: Worlds) -> None:
    """The first three, against one process that does every rank's part."""
    expected = derivatives_alone(shapes_of(kind, ranks), lambda xs: [xs] * ranks, 3)
    for way in ("one round", "two rounds"):
        for rank, found in enumerate(worlds.get(backend, ranks).run(every_order, kind, way)):
            for order in range(3):
                torch.testing.assert_close(found[order].cpu(), expected[rank][order])


def test_each_tensor_has_its_own_storage(backend: str, worlds: Worlds) -> None:
    """One can be kept, or written to, without the others."""
    assert worlds.get(backend, 3).run(storages) == [(3, [10.0, 1.0, 1.0, 2.0, 2.0, 2.0])] * 3


def test_ranks_whose_input_needs_no_gradient_take_part(backend: str, worlds: Worlds) -> None:
    """The others get their gradient; grad modes that differ are an error on every rank if one wants a gradient."""
    world = worlds.get(backend, 3)
    outcomes = world.run(who_wants, [True, False, False], [True] * 3)
    assert [outcome.value for outcome in outcomes] == [[[6.0, 6.0]], None, None]
    outcomes = world.run(who_wants, [True, False, False], [True, True, False])
    assert [outcome.error for outcome in outcomes] == ["DisagreementError"] * 3
    assert len({outcome.message for outcome in outcomes}) == 1
    assert [o.error for o in world.run(who_wants, [False] * 3, [True, True, False])] == [""] * 3


@GLOO_ONLY
def test_subgroups(worlds: Worlds) -> None:
    """Ranks in the order of the group."""
    found = worlds.get("gloo", 4).run(in_a_subgroup, [1, 3])
    for rank in (1, 3):
        assert [part.tolist() for part in found[rank]] == [[[1.0, 1.0]], [[3.0, 3.0]] * 3]


def test_alone_the_input_comes_back() -> None:
    """Without a process group. What cannot be gathered is refused there too."""
    x = torch.ones(2, 3)
    (same_x,) = core.all_gather_each(x)
    assert same_x is x
    for bad in (1.0, x.to_sparse(), torch.nn.UninitializedParameter()):
        with pytest.raises(core.BadInputError):
            core.all_gather_each(bad)  # type: ignore[arg-type]
    with pytest.raises(core.BadInputError, match="grad must be"):
        core.all_gather_each(x, grad="mean")  # type: ignore[arg-type]


# ------------------------------------------------------------------ bad input

OK: dict[str, Any] = {"shape": (2, 3)}

BAD: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "not a tensor": ({"kind": "not a tensor"}, "BadInputError", ["rank 1 of 2", "'float'", "dense torch.tensor"]),
    "sparse": ({"kind": "sparse"}, "BadInputError", ["rank 1 of 2", "dense torch.tensor"]),
    "nested": ({"kind": "nested"}, "BadInputError", ["rank 1 of 2"]),
    "lazy": ({"kind": "lazy"}, "BadInputError", ["UninitializedParameter"]),
    "quantized": ({"kind": "quantized"}, "BadInputError", ["qint8"]),
    "DTensor": ({"kind": "DTensor"}, "BadInputError", ["DTensor"]),
    "on no served device": ({"kind": "meta"}, "BadInputError", ["on cpu"]),
    "freed": ({"kind": "freed"}, "BadInputError", ["its memory was freed"]),
    "another kind of gradient": ({"options": {"grad": "mean"}}, "BadInputError", ["grad must be"]),
    "dtype": ({"dtype": "float64"}, "DisagreementError", ["float32", "float64", "dtype differs"]),
    "dims": ({"shape": (2, 3, 1)}, "DisagreementError", ["of 2 dims", "of 3 dims", "operation differs"]),
    "0-d": ({"shape": ()}, "DisagreementError", ["of 2 dims", "of 0 dims"]),
    "gradient": ({"options": {"grad": "local"}}, "DisagreementError", ["summed gradient"]),
    "all_gather": ({"operation": "all_gather"}, "DisagreementError", ["operation all_gather;"]),
    "all_gather_same_dim": ({"operation": "all_gather_same_dim"}, "DisagreementError", ["all_gather_each of 2 dims"]),
}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=needs_dtensor) if k == "DTensor" else k for k in BAD])
def test_bad_input_raises_everywhere(kind: str, backend: str, worlds: Worlds) -> None:
    """The same error on every rank, and the group stays usable."""
    bad, error, words = BAD[kind]
    answers = worlds.get(backend, 2).run(bad_each, [OK, {**OK, **bad}])
    assert [good for _, good in answers] == [[0.0, 1.0, 1.0]] * 2, "the next valid call"
    outcomes = [outcome for outcome, _ in answers]
    assert {outcome.error for outcome in outcomes} == {error}, outcomes
    assert len({outcome.message for outcome in outcomes}) == 1
    assert [word for word in words if word not in outcomes[0].message] == [], outcomes[0].message


# ------------------------------------------------------------------ what is sent


SMALL = [(3, 2), (0, 5), (1, 1)]
LARGE = [(3, 300_000), (0, 5), (7, 1)]


@pytest.mark.parametrize(
    ("shapes", "room", "expected"),
    [
        (SMALL, None, ["send_to_first"]),
        (LARGE, None, ["send_to_first"] + ["broadcast"] * 3),
        (SMALL, 3 * 16, ["send_to_first", "send_to_first"]),
        (SMALL, 0, ["send_to_first", "send_to_first", "send_to_first"]),
    ],
    ids=["small", "large", "room for the shapes only", "no room for the shapes"],
)
@GLOO_ONLY
def test_collectives_are_counted(shapes: Any, room: int | None, expected: list[str], worlds: Worlds) -> None:
    """Shapes come with the header where they fit, and so do few elements."""
    for calls, _, right in worlds.get("gloo", 3).run(collectives_of, shapes, room):
        assert right
        assert [name for name, *_ in calls] == expected
        large = [nbytes for name, nbytes, _ in calls if name == "broadcast"]
        assert large in ([], [4 * shape[0] * shape[1] for shape in shapes])


@GLOO_ONLY
def test_only_real_elements_are_sent(worlds: Worlds) -> None:
    """A header of 48 bytes, 8 bytes for each size, and the elements, up to a multiple of 16 bytes in all."""
    blocks = [48 + 16 + nbytes for nbytes in (32, 0, 16)]  # of 6, 0 and 1 elements
    found = worlds.get("gloo", 3).run(collectives_of, SMALL, None)
    assert [sent for _, sent, _ in found] == [2 * sum(blocks), blocks[1], blocks[2]]


# ------------------------------------------------------------------ faults and torch.compile


@pytest.mark.parametrize("stage", ["headers", "elements"])
@pytest.mark.only_over("gloo", reason="NCCL's watchdog ends the process")
def test_a_killed_rank_is_an_error_on_the_others(stage: str) -> None:
    """A TransportError on every other rank, and no hang."""
    with World(3, deadlines=Deadlines(collective=4.0, case=60.0)) as world:
        outcomes = world.try_run(lost, 1, stage, lost=[1])
    for rank in (0, 2):
        assert outcomes[rank].error == "TransportError", outcomes[rank]
        assert ("exchange of sizes" if stage == "headers" else "gather of") in outcomes[rank].message


@needs_compile
@pytest.mark.parametrize("eager_ranks", [[], [0]], ids=["all compiled", "one eager"])
@GLOO_ONLY
def test_under_compile_it_breaks_the_graph(eager_ranks: list[int], worlds: Worlds) -> None:
    """With the same values and gradients; compiled and eager ranks meet."""
    assert worlds.get("gloo", 2).run(compiled, eager_ranks) == [True, True]
