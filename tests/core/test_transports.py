# SPDX-License-Identifier: MIT
"""How bytes move: every transport gives the same, collectives are counted, memory is watched."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shared_distributed as core
from tests.adapters.sound import low_precision_gradient
from tests.support import World, Worlds
from tests.support.gather import gather_by, run_case
from tests.support.old_torch import WHOLE, needs_compile, needs_gloo_reduce_scatter
from tests.support.oracle import DIMS, SIZES, Case, Result, cases_of, gathered, gradient, same, sizes_of, values
from tests.support.watch import counted, messages_sent, peak_bytes, replaced, slots, watched
from tests.support.world import place

# ------------------------------------------------------------------ on ranks

agree = importlib.import_module("shared_distributed._agree")
call = importlib.import_module("shared_distributed._call")
choose = importlib.import_module("shared_distributed._choose")
gloo = importlib.import_module("shared_distributed._gloo")
nccl = importlib.import_module("shared_distributed._nccl")


class WithReduceScatter(call.AnyBackend):  # type: ignore[misc, name-defined]
    """Broadcasts, and the sums of NCCL's way: gloo has a reduce-scatter too."""

    sum = nccl.Nccl.sum


WAYS = {"gloo": gloo.Gloo, "heart": call.AnyBackend, "reduce-scatter": WithReduceScatter}


@contextmanager
def forced(way: str, small: int) -> Iterator[None]:
    """Only the named way, with `small` as the border between small and large; no rows come with the headers."""
    saved = gloo.SMALL_GATHER, gloo.SMALL_SUM, gloo.MOST_FOR_ONE_RANK
    gloo.SMALL_GATHER = gloo.SMALL_SUM = gloo.MOST_FOR_ONE_RANK = small
    try:
        with replaced(choose, ["_way_of"], lambda *_: lambda *_: WAYS[way]), slots(0):
            yield
    finally:
        gloo.SMALL_GATHER, gloo.SMALL_SUM, gloo.MOST_FOR_ONE_RANK = saved


def run_forced(way: str, small: int, cases: list[Case]) -> list[Result]:
    with forced(way, small):
        return [run_case(gather_by("core sum"), case) for case in cases]


def low_precision_sum(way: str, small: int) -> list[float]:
    """As in `tests.adapters.sound`, over the named transports only."""
    with forced(way, small):
        return low_precision_gradient("core sum", "bfloat16", 256.0)


def peak_over_output(dim: int) -> float:
    """The most that a gather allocates at one time, over the size of its output; 4 MiB a rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [1024 * (r + 1) for r in range(world)]
    shape = [4, 1024]
    shape[dim] = sizes[rank] * (1 if dim == 0 else 4)
    sizes = [n * (1 if dim == 0 else 4) for n in sizes]
    shape[1 - dim] = 1024 if dim == 0 else 256
    x = torch.zeros(shape)
    core.all_gather(x, dim, sizes=sizes)  # whatever is made once is made here
    output = sum(sizes) * shape[1 - dim] * 4
    return peak_bytes(lambda: core.all_gather(x, dim, sizes=sizes)) / output


def run_in_two_rounds(subject: str, cases: list[Case]) -> list[Result]:
    with slots(0):
        return [run_case(gather_by(subject), case) for case in cases]


def run_without_short_messages(subject: str, cases: list[Case]) -> list[Result]:
    with replaced(choose, ["takes_short_messages"], lambda *_: lambda: False), slots(gloo.ROOM):
        return [run_case(gather_by(subject), case) for case in cases]


def at_the_edge(widths: list[int], rows: list[int], slot: int) -> tuple[list[str], bool]:
    """The collectives of a gather of bytes, tensors of these widths, and whether all came."""
    rank = dist.get_rank()
    by_rank = [[values(r, (n, width), "uint8") for width in widths] for r, n in enumerate(rows)]
    with slots(slot * len(rows)), watched() as calls:
        found, sizes = core.all_gather(by_rank[rank])
    whole = [torch.cat(parts) for parts in zip(*by_rank, strict=True)]
    return [name for name, *_ in calls], sizes == tuple(rows) and all(map(torch.equal, found, whole))


def messages_of_a_gather(sizes: list[int], given: bool) -> list[tuple[int, int]]:
    """To whom this rank sends how many bytes."""
    with messages_sent() as sent:
        core.all_gather(values(dist.get_rank(), (sizes[dist.get_rank()], 4), "float32"), sizes=sizes if given else None)
    return sent


def same_shapes_in_one_round() -> tuple[list[str], bool]:
    rank, world = dist.get_rank(), dist.get_world_size()
    with watched() as calls:
        parts = core.all_gather_same_dim(values(rank, (2, 3), "int16"))
    return [name for name, *_ in calls], all(same(parts[r], values(r, (2, 3), "int16")) for r in range(world))


def compiled_in_one_round() -> tuple[list[str], bool]:
    """The collectives of a compiled gather of two tensors, of which one wants a gradient, and whether it is right."""
    rank = dist.get_rank()
    labels, features = values(rank, (rank + 1,), "int64"), values(rank, (rank + 1, 3), "float32").requires_grad_()

    def weighted(labels: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        (a, b), _ = core.all_gather((labels, features))
        return ((rank + 1) * a[:, None] * b).sum()

    expected = torch.autograd.grad(weighted(labels, features), features)[0]
    compiled = torch.compile(weighted, backend="aot_eager", fullgraph=WHOLE)
    with watched() as calls:
        loss = compiled(labels, features)
    return [name for name, *_ in calls], torch.equal(torch.autograd.grad(loss, features)[0], expected)


def rows_without_memory_on_the_host() -> list[Any]:
    """What comes with the headers of a tensor on another device: in a mixed group such a call gets here."""
    ranks = gloo.Gloo(dist.group.WORLD, [torch.empty(2, 3, device="meta")], 0)
    claims = ranks.exchange(agree._Claim(7, 2, 0, 0))
    return [*claims, ranks.arrived]


def connected_lazily(how: str) -> list[tuple[list[float], list[float]]]:
    """Small gathers and sums, the first calls of a group whose connections are made when they are used."""
    where = place()
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    store = dist.FileStore(f"{where.folder}/lazy", where.size)
    patience = timedelta(seconds=20)
    dist.init_process_group("gloo", store=store, rank=where.rank, world_size=where.size, timeout=patience)
    x = torch.full((where.rank + 1,), float(where.rank), requires_grad=True)
    sizes = list(range(1, where.size + 1))
    gathered, _ = core.all_gather(x, sizes=sizes if how == "sizes given" else None)
    (gathered * (where.rank + 1)).sum().backward()
    assert x.grad is not None
    return [(gathered.tolist(), x.grad.tolist())]


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize("how", ["sizes given", "sizes not given"])
def test_connections_that_are_made_when_they_are_used(how: str) -> None:
    """TORCH_GLOO_LAZY_INIT=1: a receive that waits for its sender's connection must not keep this rank from sending."""
    with World(5, join=False) as world:
        rows = [float(rank) for rank in range(5) for _ in range(rank + 1)]
        assert world.run(connected_lazily, how) == [[(rows, [15.0] * (rank + 1))] for rank in range(5)]


@pytest.mark.only_over("gloo", reason="headers on the CPU are gloo's")
def test_rows_on_another_device_do_not_come_with_headers_on_the_cpu(worlds: Worlds) -> None:
    """In a group of gloo and NCCL, the header of a CUDA tensor is on the CPU; its rows must not be read from there."""
    assert worlds.get("gloo", 2).run(rows_without_memory_on_the_host) == [[(7, 2, 0, 0), (7, 2, 0, 0), []]] * 2


GLOO_ONLY = pytest.mark.only_over("gloo", reason="gloo's collectives are counted, or a transport is forced on it")


EVERY_TRANSPORT = pytest.mark.parametrize(
    ("way", "small"),
    [
        ("gloo", 1 << 40),
        ("gloo", -1),
        ("heart", 0),
        pytest.param("reduce-scatter", 0, marks=needs_gloo_reduce_scatter),
    ],
    ids=["through the first", "broadcasts and all-to-all", "broadcasts and all-reduce", "reduce-scatter"],
)


@pytest.mark.parametrize("dtype", ["float32", "int16", "complex64"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4], ids="W{}".format)
@EVERY_TRANSPORT
@GLOO_ONLY
def test_every_transport_gives_the_same(way: str, small: int, dtype: str, ranks: int, worlds: Worlds) -> None:
    """Each way to move bytes, forced, over every dim and kind of sizes, and one rank with nearly all rows."""
    # what moves bytes sees neither strides nor how sizes were passed: one kind of each
    cases = [Case(sizes_of(kind, ranks), dim, dtype, "list") for kind in SIZES for dim in DIMS]
    cases += [Case((9,) + (1,) * (ranks - 1), dim, dtype, "list") for dim in (0, 1)]
    by_rank = worlds.get("gloo", ranks).run(run_forced, way, small, cases)
    for rank, results in enumerate(by_rank):
        for case, result in zip(cases, results, strict=True):
            assert same(result.gathered, gathered(case)), case
            assert result.gradient is None or same(result.gradient, gradient(case, rank, "sum")), case


@EVERY_TRANSPORT
@GLOO_ONLY
def test_every_transport_sums_half_precision_in_float32(way: str, small: int, worlds: Worlds) -> None:
    """As in test_sound, for each of them, forced."""
    answers = worlds.get("gloo", 4).run(low_precision_sum, way, small)
    assert answers == [[260.0] * 4] * 4


@pytest.mark.parametrize("subject", ["core sum", "core local"])
@pytest.mark.parametrize("ranks", [2, 3], ids="W{}".format)
@GLOO_ONLY
def test_two_rounds_give_the_same_as_one(subject: str, ranks: int, worlds: Worlds) -> None:
    """The matrix's cases are small enough to come with the header; here they must not."""
    cases = [case._replace(given="no") for case in cases_of(ranks, 2, f"two rounds {subject}")]
    for rank, results in enumerate(worlds.get("gloo", ranks).run(run_in_two_rounds, subject, cases)):
        for case, result in zip(cases, results, strict=True):
            assert same(result.gathered, gathered(case)), case
            expected = gradient(case, rank, subject.split()[1])
            assert result.gradient is None or same(result.gradient, expected), case


@pytest.mark.parametrize("subject", ["core sum", "core local"])
@pytest.mark.parametrize("ranks", [2, 3], ids="W{}".format)
@GLOO_ONLY
def test_gloo_without_short_messages_gives_the_same(subject: str, ranks: int, worlds: Worlds) -> None:
    """Where gloo's messages have to be as long as expected, as on macOS and Windows."""
    cases = [case._replace(given="no") for case in cases_of(ranks, 2, f"plain {subject}")]
    for rank, results in enumerate(worlds.get("gloo", ranks).run(run_without_short_messages, subject, cases)):
        for case, result in zip(cases, results, strict=True):
            assert same(result.gathered, gathered(case)), case
            expected = gradient(case, rank, subject.split()[1])
            assert result.gradient is None or same(result.gradient, expected), case


@pytest.mark.parametrize(
    ("widths", "rows", "fits"),
    [
        ([1], [64, 64], True),
        ([1], [64, 65], False),
        ([1], [0, 65], False),
        ([9, 10], [3, 1], True),  # 27 bytes take 32, and 30 follow
        ([9, 11], [3, 1], False),  # 33 follow
        ([1], [64, 0, 64, 64], True),
        ([1], [65, 0, 0, 0], False),
    ],
    ids=str,
)
@GLOO_ONLY
def test_rows_come_with_the_header_if_every_rank_s_fit(
    widths: list[int], rows: list[int], fits: bool, worlds: Worlds
) -> None:
    """Up to the last byte, several tensors together; and if one rank's do not, a second round for all."""
    for calls, right in worlds.get("gloo", len(rows)).run(at_the_edge, widths, rows, 64):
        assert right
        assert calls == ["send_to_first"] * (1 + len(widths) * (not fits))


@GLOO_ONLY
def test_tensors_of_one_shape_take_one_round_too(worlds: Worlds) -> None:
    """`all_gather_same_dim` needs no second one for small tensors."""
    assert worlds.get("gloo", 3).run(same_shapes_in_one_round) == [(["send_to_first"], True)] * 3


@needs_compile
@GLOO_ONLY
def test_a_compiled_gather_takes_one_round_too(worlds: Worlds) -> None:
    """The rows come with the header there as well, so that a compiled and an eager rank still meet."""
    assert worlds.get("gloo", 3).run(compiled_in_one_round) == [(["send_to_first"], True)] * 3


SKEWED = Case((40, 1, 1, 1), 0, "float32", "list", other=(1, 16))
LARGER = SKEWED._replace(sizes=(40000, 1, 1, 1))  # 2.4 MiB


@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [
        (SKEWED, ["send_to_first"], ["send_to_first"]),
        (LARGER, ["broadcast"] * 4, ["all_to_all_single"]),
        (SKEWED._replace(given="no"), ["send_to_first"], ["send_to_first"]),
        (LARGER._replace(given="no"), ["send_to_first"] + ["broadcast"] * 4, ["all_to_all_single"]),
        (SKEWED._replace(dim=1, other=(3, 1), sizes=(5, 2, 3, 4)), ["send_to_first"], ["send_to_first"]),
    ],
    ids=["sizes given", "sizes given, larger", "sizes not given", "sizes not given, larger", "dim 1"],
)
@GLOO_ONLY
def test_collectives_are_counted(case: Case, forward: list[str], backward: list[str], worlds: Worlds) -> None:
    """Small rows go through one rank, with the headers where sizes are not given; larger ones straight to all."""
    for sent, returned in worlds.get("gloo", 4).run(counted, "core sum", case):
        assert [name for name, *_ in sent] == forward
        assert [name for name, *_ in returned] == backward


@pytest.mark.parametrize("given", [True, False], ids=["sizes given", "sizes not given"])
@GLOO_ONLY
def test_small_rows_travel_without_padding(given: bool, worlds: Worlds) -> None:
    """Own rows to the first rank, all rows along a tree; with the headers, and nothing else, where they come along."""
    sizes = (300, 0, 7, 41, 5)
    header = 0 if given else 48
    up = [n * 16 + header for n in sizes]  # 16 bytes a row
    whole = sum(up)
    down = [[4, 2, 1], [], [3], [], []]
    for rank, sent in enumerate(worlds.get("gloo", 5).run(messages_of_a_gather, list(sizes), given)):
        assert sent == [(0, up[rank])] * (rank > 0) + [(child, whole) for child in down[rank]], rank


@GLOO_ONLY
def test_of_two_ranks_each_is_sent_what_it_lacks(worlds: Worlds) -> None:
    """The other's rows, and nothing else."""
    sent = worlds.get("gloo", 2).run(messages_of_a_gather, [300, 7], True)
    assert sent == [[(1, 300 * 16)], [(0, 7 * 16)]]


@pytest.mark.parametrize("dim", [0, 1])
@GLOO_ONLY
def test_only_real_rows_travel(dim: int, worlds: Worlds) -> None:
    """Large and skewed: each rank takes in exactly the other ranks' bytes, with no padding."""
    sizes = (80000, 10, 0, 500)
    case = Case(sizes, dim, "float32", "list", other=(8, 8))
    row = 8 * 4
    for rank, (sent, _) in enumerate(worlds.get("gloo", 4).run(counted, "core local", case)):
        assert [(name, nbytes) for name, nbytes, _ in sent] == [("broadcast", n * row) for n in sizes], rank


class NobodyThere:
    """A call of `ranks` ranks, of which this is the first, over a group that moves nothing."""

    def __init__(self, ranks: int) -> None:
        self.rank, self.world, self.group = 0, ranks, None


@pytest.mark.parametrize(
    ("ranks", "rows", "through_one"),
    [(2, 512, True), (2, 513, False), (8, 512, True), (8, 513, False), (64, 64, True), (64, 65, False)],
)
def test_no_more_goes_through_the_first_rank_among_many(
    ranks: int, rows: int, through_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum brings at most 4 MiB to it, however many ranks there are. A KiB a row; nothing moves."""
    ways: list[str] = []
    ranks_alone: Any = NobodyThere(ranks)
    for name in ("_sum_on_first", "_sum_on_each", "_sum_everywhere"):
        monkeypatch.setattr(NobodyThere, name, lambda *_, name=name: ways.append(name), raising=False)
    sizes = [rows // ranks] * (ranks - 1)
    sizes.append(rows - sum(sizes))
    gloo.Gloo.sum(ranks_alone, torch.zeros(rows, 256), 0, sizes)
    assert ways == ["_sum_on_first" if through_one else "_sum_on_each"]


@pytest.mark.parametrize(
    ("sizes", "way"),
    [
        ([7000, 1, 1, 1, 1, 1, 1, 1], "_sum_everywhere"),
        ([2000, 1, 1, 1, 1, 1, 1, 1], "_sum_on_each"),  # 15.6 MiB for the first
        ([5000] * 8, "_sum_on_each"),  # as much for each
        ([9000, 9000], "_sum_on_each"),
    ],
    ids=["one owns most", "not so much", "even", "two ranks"],
)
def test_a_large_sum_of_which_one_rank_owns_most_is_an_all_reduce(
    sizes: list[int], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the sizes alone, which all ranks share. A KiB a row; nothing moves."""
    ways: list[str] = []
    ranks_alone: Any = NobodyThere(len(sizes))
    for name in ("_sum_on_first", "_sum_on_each", "_sum_everywhere"):
        monkeypatch.setattr(NobodyThere, name, lambda *_, name=name: ways.append(name), raising=False)
    gloo.Gloo.sum(ranks_alone, torch.zeros(sum(sizes), 256), 0, sizes)
    assert ways == [way]


@pytest.mark.parametrize(
    ("ranks", "kib", "through_one"), [(8, 2048, True), (8, 2049, False), (9, 4096, True), (9, 4097, False)]
)
def test_gathers_through_the_first_rank(
    ranks: int, kib: int, through_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 2 MiB, and 4 MiB among more than 8 ranks, whatever each of them has. Nothing moves here."""
    ways: list[str] = []
    ranks_alone: Any = NobodyThere(ranks)
    for name in ("send_to_first", "send_onward", "broadcasts"):
        monkeypatch.setattr(gloo, name, lambda *_, name=name: ways.append(name))
    rows = torch.zeros(kib, 256)
    gloo.Gloo.send_rows(ranks_alone, rows, rows.split([kib - ranks + 1] + [1] * (ranks - 1)))
    assert ways == (["send_to_first", "send_onward"] if through_one else ["broadcasts"])


def test_the_local_gradient_needs_no_communication(backend: str, worlds: Worlds) -> None:
    """grad='local' is a plain slice."""
    for _, returned in worlds.get(backend, 4).run(counted, "core local", SKEWED):
        assert returned == []


@pytest.mark.parametrize(("dim", "buffers"), [(0, 1), (1, 2)])
@pytest.mark.only_over("gloo", reason="what is watched is the CPU's allocator")
def test_memory_is_the_output_and_at_most_one_more(dim: int, buffers: int, worlds: Worlds) -> None:
    """Large tensors: along dim 0 nothing but the output is allocated, along others one buffer of its size more."""
    for peak in worlds.get("gloo", 3).run(peak_over_output, dim):
        assert buffers - 0.01 < peak < buffers + 0.05
