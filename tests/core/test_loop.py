# SPDX-License-Identifier: MIT
"""`until_all_done`: ranks with different numbers of batches take the same number of steps."""

import copy
import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

import shared_distributed as core
from shared_distributed._channel import Channel, Says, Word, _channels
from shared_distributed._cut import cut_to_no_rows
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
        "mixed": {
            "rows": rows,
            "ids": rows.numpy(),
            "texts": ["a", "b"],
            "modality": "text",
            "n": 7,
            "scale": rows[0, 0],
        },
        "texts": ["a", "b"],
        "object": [rows, iter("ab")],
        "0-d": {"scale": rows.sum()},
    }[kind]


def shapes_of(batch: Any) -> Any:
    if isinstance(batch, (Tensor, np.ndarray)):
        return tuple(batch.shape), str(batch.dtype)
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


def order_of_events() -> list[str]:
    """What a rank does, in order: fetches, sums of flags, and the loop's body."""
    events: list[str] = []
    tell = Channel.tell

    def watched(self: Channel, group: Any, word: Word) -> list[Word]:
        events.append(Says(word.says).name)
        assert self.table.device.type == "cpu"
        return tell(self, group, word)

    def loader() -> Iterator[Tensor]:
        for i in range(2):
            events.append(f"fetch {i}")
            yield torch.full((1,), float(i), device=device())

    Channel.tell = watched
    try:
        for i, batch in enumerate(core.until_all_done(loader())):
            core.all_gather(batch)
            events.append(f"use {i}")
    finally:
        Channel.tell = tell
    return events


def channels_made() -> list[int]:
    """How many channels a rank has: at first, and after each of three loops, the last in a pair."""
    made, pair = [len(_channels)], dist.new_group([0, 1])
    for group in (None, None, pair if dist.get_rank() < 2 else "outside"):
        if group != "outside":
            steps = [len(batch) for batch in core.until_all_done(batches_of(0, (2,)), group=group)]
            assert len(steps) == 2
        made.append(len(_channels))
    return made


class Sampled(list[Tensor]):
    """A loader with the attributes of one."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def lengths(counts: tuple[int, ...]) -> list[Any]:
    """The length before a loop on rank 0 alone, in it, and after a second epoch; then without one on rank 1."""
    rank = dist.get_rank()
    loader = Sampled(batches_of(rank, counts))
    loop = core.until_all_done(loader, empty=no_rows)
    found: list[Any] = [len(loop)] if rank == 0 else [None]
    for epoch in range(2):
        loop.set_epoch(epoch)
        found.append([len(loop) for _ in loop])
    loader.append(loader[0] if loader else torch.ones(1, 6))
    found.append([len(loop) for _ in loop][-1])
    found.append((loop.epoch, hasattr(loop, "sampler")))
    unknown = core.until_all_done(iter(loader) if rank == 1 else loader, empty=no_rows)
    return [*found, attempt(lambda: len(unknown)).error, len(list(unknown))]


def copies_of_a_loop() -> list[int]:
    """Its epochs, those of a copy, and of one that was pickled."""
    loop = core.until_all_done(batches_of(dist.get_rank(), (2, 1, 1)))
    copies = [loop, copy.copy(loop), copy.deepcopy(loop), pickle.loads(pickle.dumps(loop))]
    return [len(list(each)) for each in copies]


def interleaved() -> list[tuple[int, int]]:
    """Two loops side by side over one loader, as zip takes them."""
    loop = core.until_all_done([torch.full((1,), float(i)) for i in range(dist.get_rank() + 1)])
    return [(left.sum().item(), right.sum().item()) for left, right in zip(loop, loop, strict=True)]


def loops_in_and_out_of_inference_mode() -> list[int]:
    """The first loop of a group, in which the ranks get to know each other, runs in inference mode."""
    steps = []
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            steps.append(len(list(core.until_all_done(batches_of(dist.get_rank(), (2, 1))))))
    return steps


def reused_buffer() -> list[float]:
    """A loader that writes every batch into the same memory."""

    def loader() -> Iterator[Tensor]:
        buffer = torch.zeros(1)
        for i in range(4):
            yield buffer.fill_(i)

    return [batch.item() for batch in core.until_all_done(loader())]


def leaves_alone(how: str) -> list[Any]:
    """Rank 1 leaves its loop at the second of four steps; what each rank meets next, and in later loops."""
    found: list[Any] = []

    def loop() -> int:
        steps = 0
        for _ in core.until_all_done(batches_of(0, (4,))):
            steps += 1
            if how == "validation inside":
                assert len(list(core.until_all_done(batches_of(dist.get_rank(), (1, 2, 2))))) == 2
            if steps == 2 and dist.get_rank() == 1:
                if how == "raise":
                    raise KeyError("something else")
                break
        return steps

    found.append(attempt(loop))
    found.append(attempt(lambda: len(list(core.until_all_done(batches_of(0, (2,)))))) if dist.get_rank() == 1 else None)
    found.append(len(list(core.until_all_done(batches_of(0, (3,))))))
    return found


def starts_again() -> list[Any]:
    """Rank 1 begins a new loop while the others are in the first one, and its first iterator is still there."""
    held = iter(core.until_all_done(batches_of(0, (4,))))
    next(held)
    first = attempt(lambda: len(list(core.until_all_done(batches_of(0, (2,))) if dist.get_rank() == 1 else held)))
    return [first, len(list(core.until_all_done(batches_of(0, (3,)))))]


def stops_at_the_end() -> list[int]:
    """Every rank leaves without asking for a batch after the last; rank 1 has one more and leaves there too."""
    taken = []
    for _ in range(3):
        steps = iter(core.until_all_done(batches_of(dist.get_rank(), (2, 3, 1))))
        taken.append(len([next(steps) for _ in range(3)]))
        del steps
    return [*taken, core.all_gather(torch.ones(2))[1].total]


def same_rows(how: str) -> list[str]:
    """The warnings of two epochs over a DataLoader."""
    torch.manual_seed(3)  # as scripts do, on every rank
    data = TensorDataset(torch.arange(12.0).reshape(6, 2))
    rank, world = dist.get_rank(), dist.get_world_size()
    if how == "whole":
        loader: Any = DataLoader(data, batch_size=2, shuffle=True)
    elif how == "subset":
        loader = DataLoader(Subset(data, range(rank, 6, world)), batch_size=2)
    else:
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            list(core.until_all_done(loader))
    return [str(warning.message) for warning in caught]


def repeated_rows(how: str) -> Outcome:
    """A loop over a loader that looks like one of accelerate's."""
    loader = type(how if how == "DataLoaderDispatcher" else "DataLoaderShard", (Sampled,), {})([torch.ones(1)])
    loader.dataset = type(how, (), {})()
    try:
        list(core.until_all_done(loader))
    except core.BadInputError as error:
        return usable_after(Outcome(str(error.__cause__), type(error).__name__, message=str(error)))
    return Outcome()


# ------------------------------------------------------------------ steps


def test_alone_the_loader_is_all_there_is() -> None:
    """Without a process group nothing is added, and its error is its own."""
    assert list(core.until_all_done([1, "two"])) == [1, "two"]
    assert core.until_all_done([])  # true without its length, for which several ranks would ask each other
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


@pytest.mark.parametrize("kind", ["tensor", "dict", "namedtuple", "mixed", "texts"])
def test_batches_of_0_rows_have_the_shape_of_real_ones(kind: str, backend: str, worlds: Worlds) -> None:
    """In containers too, and whatever the body does to a batch."""
    expected = shapes_of(cut_to_no_rows(batch_of(kind, 0)))
    full, cut, same_as_cut = worlds.get(backend, 3).run(cut_batches, kind, (4, 1, 2))
    assert full.value == shapes_of(batch_of(kind, 0))
    assert cut.value == same_as_cut.value == expected


def test_what_is_cut_and_what_stays() -> None:
    """Tensors, arrays and one string per row are cut; other strings, numbers and tensors of a single number stay."""
    batch = batch_of("mixed", 1) | {"names": ["one", "two", "three"], "pair": Pair(torch.ones(2, 4), torch.ones(2))}
    cut = cut_to_no_rows(batch)
    assert shapes_of(cut) == {
        "rows": ((0, 3), "torch.float32"),
        "ids": ((0, 3), "float32"),
        "texts": ("list",),
        "modality": "text",
        "n": 7,
        "scale": ((), "torch.float32"),
        "names": ("list", "one", "two", "three"),
        "pair": ("Pair", ((0, 4), "torch.float32"), ((0,), "torch.float32")),
    }
    assert len(batch["rows"]) == 2
    assert len(batch["texts"]) == 2


# ------------------------------------------------------------------ an object, as a loader is


def test_its_length_is_the_number_of_steps(backend: str, worlds: Worlds) -> None:
    """The same on every rank, in every epoch; before the first loop one rank may ask alone. Attributes pass through."""
    for rank, found in enumerate(worlds.get(backend, 3).run(lengths, COUNTS)):
        assert found == [5 if rank == 0 else None, [5] * 5, [5] * 5, 6, (1, False), "TypeError", 6]


def test_every_epoch_starts_anew_and_copies_work(backend: str, worlds: Worlds) -> None:
    """Iterated again, copied and pickled: two steps each."""
    assert worlds.get(backend, 3).run(copies_of_a_loop) == [[2] * 4] * 3


def test_two_iterations_at_once_do_not_disturb_each_other(backend: str, worlds: Worlds) -> None:
    """Each has its own place in the loader."""
    answers = worlds.get(backend, 3).run(interleaved)
    assert answers == [[(float(i) * (i <= rank),) * 2 for i in range(3)] for rank in range(3)]


def test_the_first_loop_may_be_an_evaluation(backend: str) -> None:
    """In inference mode, with training afterwards."""
    with World(2, backend) as world:
        assert world.run(loops_in_and_out_of_inference_mode) == [[2, 2, 2]] * 2


def test_a_loader_may_reuse_its_memory(backend: str, worlds: Worlds) -> None:
    """The next batch is fetched only when it is asked for."""
    assert worlds.get(backend, 2).run(reused_buffer) == [[0.0, 1.0, 2.0, 3.0]] * 2


@pytest.mark.only_over("gloo", reason="no process group here")
def test_before_the_process_group_exists_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a launcher, when it is iterated and not when it is made."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    loop = core.until_all_done([torch.ones(1)])
    for use in (list, len):
        with pytest.raises(core.BadInputError, match=r"2 ranks.*init_process_group"):
            use(loop)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert len(list(loop)) == len(loop) == 1


@pytest.mark.parametrize("how", ["whole", "subset", "sampler"])
def test_ranks_that_all_read_the_whole_dataset_are_warned(how: str, backend: str, worlds: Worlds) -> None:
    """Once per loop, where nobody divided the dataset. A Subset and a DistributedSampler are fine."""
    for said in worlds.get(backend, 2).run(same_rows, how):
        assert len(said) == (2 if how == "whole" else 0)
        assert all("2 ranks begin with the same batch of the same dataset" in text for text in said)


@pytest.mark.parametrize("how", ["IterableDatasetShard", "DataLoaderDispatcher"])
def test_loaders_that_repeat_rows_are_refused(how: str, backend: str, worlds: Worlds) -> None:
    """Of accelerate, by name; `nox -s frameworks` meets the real ones."""
    for outcome in worlds.get(backend, 2).run(repeated_rows, how):
        assert outcome.error == "BadInputError"
        assert "ranks [0, 1] of 2: the loader raised" in outcome.message
        assert "accelerate repeats rows" in outcome.value


# ------------------------------------------------------------------ a rank that leaves before the others


@pytest.mark.parametrize("how", ["break", "raise", "validation inside"])
def test_a_rank_that_leaves_early_is_named_at_the_others_next_step(how: str, backend: str, worlds: Worlds) -> None:
    """Once on every rank: where it left, when its next loop begins. After that loops work again."""
    answers = worlds.get(backend, 3).run(leaves_alone, how)
    for rank, (first, second, third) in enumerate(answers):
        outcome = second if rank == 1 else first
        assert outcome.error == "BadInputError"
        assert "ranks [1] of 3 left until_all_done's loop early" in outcome.message
        assert "ranks [0, 2] had another batch" in outcome.message
        assert third == 3
    assert answers[1][0].error == "KeyError" if how == "raise" else answers[1][0].value == 2


def test_a_rank_that_begins_another_loop_is_named(backend: str, worlds: Worlds) -> None:
    """Though its first iterator still exists. After that loops work again."""
    for first, steps in worlds.get(backend, 3).run(starts_again):
        assert first.error == "BadInputError"
        assert "ranks [1] of 3 began another loop while ranks [0, 2] were still in the one before" in first.message
        assert steps == 3


def test_leaving_after_the_last_step_is_no_mistake(backend: str, worlds: Worlds) -> None:
    """Frameworks count the steps themselves, and never ask for one more."""
    assert worlds.get(backend, 3).run(stops_at_the_end) == [[3, 3, 3, 6]] * 3


# ------------------------------------------------------------------ what cannot go on


@pytest.mark.parametrize(("kind", "counts"), [("tensor", (2, 0, 1)), *[(k, (2, 1, 2)) for k in ("object", "0-d")]])
def test_a_rank_without_a_batch_of_0_rows_is_one_error_on_every_rank(
    kind: str, counts: tuple[int, ...], backend: str, worlds: Worlds
) -> None:
    """A rank that never had a batch, and batches that cannot be cut; the group stays usable."""
    outcomes = worlds.get(backend, 3).run(cut_batches, kind, counts)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 3
    assert len({outcome.message for outcome in outcomes}) == 1
    assert "ranks [1] of 3" in outcomes[0].message
    assert "empty=" in outcomes[0].message


@pytest.mark.parametrize("kind", ["object", "0-d"])
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


def test_a_batch_is_fetched_when_it_is_asked_for(backend: str, worlds: Worlds) -> None:
    """Not before: a loader's own state is that of the batch in hand. The flags are on the CPU over every backend."""
    expected = ["BEGINS", "fetch 0", "HAS_BATCH", "use 0", "fetch 1", "HAS_BATCH", "use 1", "IS_DONE"]
    assert worlds.get(backend, 3).run(order_of_events) == [expected] * 3


def test_a_channel_is_made_once_for_each_group(backend: str) -> None:
    """On the group's own ranks."""
    with World(3, backend) as world:
        answers = world.run(channels_made)
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
