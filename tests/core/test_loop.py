# SPDX-License-Identifier: MIT
"""`until_all_done`: ranks with different numbers of batches take the same number of steps."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import shared_distributed as core
from tests.support import Deadlines, World, Worlds
from tests.support.calls import Outcome, attempt, usable_after
from tests.support.oracle import values
from tests.support.world import device

COUNTS = (3, 5, 0)  # batches by rank


class Pair(NamedTuple):
    rows: Tensor
    label: Tensor


def batches_of(rank: int, counts: tuple[int, ...] = COUNTS) -> list[Tensor]:
    """A rank's batches, with another number of rows in each."""
    return [values(10 * rank + i, ((rank + i) % 4 + 1, 6), "float32") / 97 for i in range(counts[rank])]


def no_rows() -> Tensor:
    return torch.zeros(0, 6)


# ------------------------------------------------------------------ on ranks


def steps_taken(counts: tuple[int, ...], members: list[int] | None) -> Any:
    """What every step hands out, in two loops over the same loader, and the gathers made in the loop's body."""
    rank, group = dist.get_rank(), None
    if members:
        dist.new_group(members[:1])  # one member is in one group more than the others
        group = dist.new_group(members)
    if members and rank not in members:
        return None
    batches, steps = batches_of(rank, counts), []
    for _ in range(2):
        for batch in core.until_all_done(batches, empty=no_rows, group=group):
            gathered, sizes = core.all_gather(batch.to(device()), group=group)
            steps.append((len(batch), tuple(sizes), gathered.sum().item()))
    return steps


def batch_of(kind: str, i: int) -> Any:
    rows = torch.full((2, 3), float(i))
    return {
        "tensor": rows,
        "dict": {"rows": rows, "more": [rows[:, 0].long(), (rows,)]},
        "namedtuple": Pair(rows, rows[:, 0]),
        "0-d": {"rows": rows, "scale": rows.sum()},
        "text": [rows, ["a", "b"]],
        "none": (rows, None),
    }[kind]


def shapes_of(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return tuple(batch.shape), batch.dtype
    if isinstance(batch, dict):
        return {key: shapes_of(value) for key, value in batch.items()}
    return (type(batch).__name__, *map(shapes_of, batch)) if isinstance(batch, (list, tuple)) else batch


def cut_batches(kind: str, counts: tuple[int, ...]) -> Outcome:
    """The last step's batch, by shape. The body takes every dict apart."""

    def loop() -> Any:
        shapes = None
        for batch in core.until_all_done([batch_of(kind, i) for i in range(counts[dist.get_rank()])]):
            shapes = shapes_of(batch)
            if isinstance(batch, dict):
                batch.clear()
        return shapes

    return usable_after(attempt(loop))


def raising_loader(where: str) -> Outcome:
    """A loader that raises on rank 1, when it starts or at its third batch; or a rank's `empty` does."""

    def loader() -> Iterator[Tensor]:
        for i, batch in enumerate(batches_of(0, (4,))):
            if dist.get_rank() == 1 and where in ("start", "end") and i == {"start": 0, "end": 2}[where]:
                raise OSError("disk on fire")
            if dist.get_rank() == 1 and where == "empty":
                return
            yield batch

    def empty() -> Tensor:
        raise OSError("no such thing")

    steps = 0
    try:
        for _ in core.until_all_done(loader(), empty=empty):
            steps += 1
    except core.BadInputError as error:
        return usable_after(Outcome((repr(error.__cause__), steps), type(error).__name__, message=str(error)))
    return Outcome()


def left_early() -> list[Any]:
    """Every rank leaves its loop at the second step, as for a maximum of steps; then two gathers."""
    for i, _ in enumerate(core.until_all_done(batches_of(dist.get_rank()), empty=no_rows)):
        if i == 1:
            break
    return [core.all_gather(torch.ones(dist.get_rank() + 1, device=device()))[1] for _ in range(2)]


class Towers(nn.Module):
    """An encoder, and beside it a layer that no batch of 0 rows uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.encode, self.rare = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, rows: Tensor, skips: bool) -> Tensor:
        return self.encode(rows) if skips and not len(rows) else self.encode(rows) + self.rare(rows)


def weights_after(counts: tuple[int, ...], skips: bool) -> list[Tensor]:
    """Train under DDP; with `skips`, ranks without rows leave a layer out, and DDP looks for what was not used."""
    group = dist.new_group() if skips else None  # then DDP and the gather need a group each
    model = DistributedDataParallel(Towers().to(device()), find_unused_parameters=skips)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for batch in core.until_all_done(batches_of(dist.get_rank(), counts), empty=no_rows):
        encoded = model(batch.to(device()), skips)
        gathered, sizes = core.all_gather(encoded, group=group)
        labels = torch.arange(len(batch), device=device()) + sizes.start
        loss = cross_entropy(encoded @ gathered.T, labels, reduction="sum") * sizes.ddp_scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


class Watched:
    """A process group that notes when a sum starts and when it is waited for."""

    def __init__(self, gloo: Any, events: list[str]) -> None:
        self.gloo, self.events = gloo, events

    def allreduce(self, tensors: list[Tensor]) -> "Watched":
        self.events.append("start")
        assert [tensor.device.type for tensor in tensors] == ["cpu"]
        self.told = self.gloo.allreduce(tensors)
        return self

    def wait(self) -> None:
        self.events.append("wait")
        self.told.wait()


def order_of_events() -> list[str]:
    """What a rank does, in order: fetches, sums of flags, and the loop's body."""
    events: list[str] = []
    gloo_of = core._loop._gloo_of

    def loader() -> Iterator[Tensor]:
        for i in range(2):
            events.append(f"fetch {i}")
            yield torch.full((1,), float(i), device=device())

    core._loop._gloo_of = lambda group: Watched(gloo_of(group), events)
    try:
        for i, batch in enumerate(core.until_all_done(loader())):
            core.all_gather(batch)
            events.append(f"use {i}")
    finally:
        core._loop._gloo_of = gloo_of
    return events


def groups_for_flags() -> list[Any]:
    """How many groups there are for flags alone: at first, and after each of three loops, the last in a pair."""
    made, pair = [len(core._loop._gloo_groups)], dist.new_group([0, 1])
    for group in (None, None, pair if dist.get_rank() < 2 else "outside"):
        if group != "outside":
            steps = [len(batch) for batch in core.until_all_done(batches_of(0, (2,)), group=group)]
            assert len(steps) == 2
        made.append(len(core._loop._gloo_groups))
    return made


# ------------------------------------------------------------------ steps


def test_alone_the_loader_is_all_there_is() -> None:
    """Without a process group nothing is added, and its error is its own."""
    assert list(core.until_all_done([1, "two"])) == [1, "two"]
    with pytest.raises(ZeroDivisionError):
        list(core.until_all_done(1 // 0 for _ in range(1)))


@pytest.mark.parametrize(("counts", "members"), [(COUNTS, None), ((0, 0, 0), None), ((1, 4, 2, 0), [1, 2, 3])])
def test_every_rank_takes_as_many_steps_as_the_longest(
    counts: tuple[int, ...], members: list[int] | None, backend: str, worlds: Worlds
) -> None:
    """Its own batches first, then batches of 0 rows; the same in a second loop, and in a group without rank 0 whose
    members are in different numbers of groups.
    """
    ranks = members or list(range(len(counts)))
    answers = worlds.get(backend, len(counts)).run(steps_taken, counts, members)
    expected: dict[int, list[Any]] = {rank: [] for rank in ranks}
    for step in range(max(counts[rank] for rank in ranks)):
        rows = {rank: batches_of(rank, counts)[step] if step < counts[rank] else no_rows() for rank in ranks}
        sizes, total = tuple(map(len, rows.values())), torch.cat(list(rows.values())).sum().item()
        for rank in ranks:
            expected[rank].append((sizes[ranks.index(rank)], sizes, pytest.approx(total)))
    for rank in ranks:
        assert answers[rank] == expected[rank] * 2


@pytest.mark.parametrize("kind", ["tensor", "dict", "namedtuple"])
def test_batches_of_0_rows_have_the_shape_of_real_ones(kind: str, backend: str, worlds: Worlds) -> None:
    """In containers too, and whatever the body does to a batch."""
    expected = shapes_of(core._loop.tree_map(lambda t: t[:0], batch_of(kind, 0)))
    full, cut, same_as_cut = worlds.get(backend, 3).run(cut_batches, kind, (4, 1, 2))
    assert full.value == shapes_of(batch_of(kind, 0))
    assert cut.value == same_as_cut.value == expected


# ------------------------------------------------------------------ what cannot go on


@pytest.mark.parametrize(
    ("kind", "counts"), [("tensor", (2, 0, 1)), *[(k, (2, 1, 2)) for k in ("0-d", "text", "none")]]
)
def test_a_rank_without_a_batch_of_0_rows_is_one_error_on_every_rank(
    kind: str, counts: tuple[int, ...], backend: str, worlds: Worlds
) -> None:
    """A rank that never had a batch, and batches that cannot be cut; the group stays usable."""
    outcomes = worlds.get(backend, 3).run(cut_batches, kind, counts)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 3
    assert len({outcome.message for outcome in outcomes}) == 1
    assert "ranks [1] of 3" in outcomes[0].message
    assert "empty=" in outcomes[0].message


@pytest.mark.parametrize("kind", ["0-d", "text", "none"])
def test_batches_that_cannot_be_cut_are_fine_where_no_rank_ends_early(kind: str, backend: str, worlds: Worlds) -> None:
    """Nothing is asked for that nobody needs."""
    assert [outcome.error for outcome in worlds.get(backend, 3).run(cut_batches, kind, (2, 2, 2))] == [""] * 3


@pytest.mark.parametrize(("where", "steps"), [("start", 0), ("end", 2), ("empty", 0)])
def test_a_loader_that_raises_is_one_error_on_every_rank(where: str, steps: int, backend: str, worlds: Worlds) -> None:
    """After the steps for which every rank had a batch; its own error is the cause where it was raised."""
    outcomes = worlds.get(backend, 3).run(raising_loader, where)
    assert len({outcome.message for outcome in outcomes}) == 1
    assert "ranks [1] of 3: the loader raised" in outcomes[0].message
    cause = "OSError('no such thing')" if where == "empty" else "OSError('disk on fire')"
    assert [outcome.value for outcome in outcomes] == [("None", steps), (cause, steps), ("None", steps)]


def test_every_rank_may_leave_the_loop_at_the_same_step(backend: str, worlds: Worlds) -> None:
    """What was under way for the next step is finished, and meets nothing else."""
    assert worlds.get(backend, 3).run(left_early) == [[(1, 2, 3)] * 2] * 3


# ------------------------------------------------------------------ training


@pytest.mark.only_over("gloo", "nccl", reason="DDP calls collectives that nccl-rules does not have")
@pytest.mark.parametrize("skips", [False, True], ids=["every parameter used", "find_unused_parameters"])
@pytest.mark.parametrize("counts", [COUNTS, (1, 1, 4)])
def test_training_under_ddp_is_that_of_one_process(
    counts: tuple[int, ...], skips: bool, backend: str, worlds: Worlds
) -> None:
    """With 3, 5 and 0 batches: the weights of one process that sees the rows of every rank at each step."""
    model, world = Towers(), len(counts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(max(counts)):
        rows = torch.cat([batches_of(rank, counts)[step] for rank in range(world) if step < counts[rank]])
        encoded = model(rows, False)
        optimizer.zero_grad()
        cross_entropy(encoded @ encoded.T, torch.arange(len(rows))).backward()
        optimizer.step()
    for weights in worlds.get(backend, world).run(weights_after, counts, skips):
        for found, expected in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


def waits_for_others(how: str) -> int:
    """A gather a batch, or a mini-batch, of which rank 0 has two and rank 1 one; how many were made."""
    rank, steps = dist.get_rank(), 0
    model = DistributedDataParallel(nn.Linear(6, 4))
    with model.join() if how == "join" else nullcontext():
        for batch in batches_of(rank, (2, 1)):
            encoded = model(batch) if how == "join" else model.module(batch)
            core.all_gather(encoded)[0].sum().backward()
            steps += 1
    return steps


@pytest.mark.only_over("gloo", reason="over NCCL the watchdog ends the process, later")
@pytest.mark.parametrize("how", ["plain loop or GradCache", "join"])
def test_without_it_unequal_numbers_of_batches_wait_for_the_timeout(how: str) -> None:
    """The trap: one rank has left its loop and the other waits for it; `DDP.join()` shadows DDP's collectives only."""
    with World(2, deadlines=Deadlines(collective=2.0, case=25.0)) as world:
        answers = world.try_run(waits_for_others, how)
    assert answers[0].type == "TransportError", answers
    assert how == "join" or answers[1] == 1


def test_flags_travel_on_gloo_while_the_batch_before_is_used(backend: str, worlds: Worlds) -> None:
    """Each sum starts after the next batch was fetched, and before the current one is handed out; over NCCL's rules
    too, where the flags have gloo to themselves.
    """
    expected = ["fetch 0", "start", "wait", "fetch 1", "start", "use 0", "wait", "start", "use 1", "wait"]
    assert worlds.get(backend, 3).run(order_of_events) == [expected] * 3


def test_a_group_for_flags_is_made_once_for_each_group(backend: str) -> None:
    """None where the group has gloo already."""
    with World(3, backend) as world:
        answers = world.run(groups_for_flags)
    if backend == "gloo":
        assert answers == [[0, 0, 0, 0]] * 3
    else:
        assert answers == [[0, 1, 1, 2]] * 2 + [[0, 1, 1, 1]]


def dies_in_a_step() -> str:
    """Rank 1 is gone before its second batch; what the others are told."""

    def loader() -> Iterator[Tensor]:
        yield no_rows()
        if dist.get_rank() == 1:
            os._exit(3)
        yield no_rows()

    return attempt(lambda: list(core.until_all_done(loader()))).message


def test_a_rank_that_dies_is_named(backend: str) -> None:
    """The sum of flags fails as every other collective here does: with the ranks that have not reported."""
    with World(3, backend) as world:
        answers = world.try_run(dies_in_a_step, lost=[1])
    for rank in (0, 2):
        assert f"sum of flags in until_all_done failed on rank {rank} of 3" in answers[rank]
        assert "No report from ranks [1]" in answers[rank]
