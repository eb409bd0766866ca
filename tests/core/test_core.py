# SPDX-License-Identifier: MIT
"""The core beyond what the adapters reach: groups, dtypes, the adjoint, transports, collectives counted."""

from typing import Any

import pytest
import torch

import shared_distributed as core
from tests.core.core import (
    a_hundred_tensors,
    asynchronously,
    conjugated,
    containers,
    counted,
    dicts_in_other_orders,
    every_dtype,
    in_forced_subgroup,
    in_subgroup,
    lazy_sum,
    low_precision_sum,
    modules_gradient,
    more_in_subgroup,
    peak_over_output,
    run_forced,
    scattered,
    several,
    several_that_clash,
    skewed_sum,
    some_tensors_want_a_gradient,
)
from tests.support import Worlds
from tests.support.old_torch import VERSION, dtypes, needs_gloo_reduce_scatter
from tests.support.oracle import DIMS, SIZES, Case, gathered, gradient, same, sizes_of, upstream


def test_exported_names() -> None:
    """The public API, name by name."""
    assert sorted(core.__all__) == [
        "AllGather",
        "BadInputError",
        "DisagreementError",
        "GatherError",
        "RowLayout",
        "StaleAnswerWarning",
        "TransportError",
        "all_gather",
        "all_gather_async",
        "all_gather_same_dim",
        "all_gather_variable_dim",
        "gather_sizes",
        "has_only_one_value",
        "is_distributed",
        "pad_dim_to",
        "reduce_scatter",
        "split_by_rank",
        "until_all_done",
    ]


# ------------------------------------------------------------------ alone


def test_alone_the_input_itself_comes_back() -> None:
    """No process group: x and its one size; nothing is copied, bad input is still bad."""
    x = torch.ones(2, 3, requires_grad=True)
    out, sizes = core.all_gather(x, -1)
    assert out is x
    assert sizes == (3,)
    assert core.reduce_scatter(x, sizes=[2]) is x
    assert not core.is_distributed()
    with pytest.raises(core.BadInputError, match=r"\(2, 3\).* along dim 2"):
        core.all_gather(x, 2)
    with pytest.raises(core.BadInputError, match=r"sizes \(1, 1\) for 1 rank"):
        core.all_gather(x, sizes=[1, 1])


# ------------------------------------------------------------------ dtypes and views


def test_every_dense_dtype(backend: str, worlds: Worlds) -> None:
    """All of them travel, bit for bit, also where the backend does not know them."""
    for seen in worlds.get(backend, 2).run(every_dtype, (2, 3)):
        assert [name for name, right in seen.items() if not right] == []
        assert len(seen) == (20 if VERSION >= (2, 4) else 13)  # no fp8, no unsigned of more than 8 bits


def test_conjugated_and_negated_views(backend: str, worlds: Worlds) -> None:
    """A lazy view is resolved before its bytes travel."""
    from tests.support.oracle import values

    parts = [values(rank, (rank + 1,), "complex64") for rank in range(2)]
    expected = torch.cat([p.conj().resolve_conj() for p in parts]).tolist()
    negated = torch.cat([-p.imag for p in parts]).tolist()
    assert worlds.get(backend, 2).run(conjugated) == [(expected, negated)] * 2


# ------------------------------------------------------------------ the adjoint


@pytest.mark.parametrize(
    "dtype", dtypes(("float32", "bfloat16", "float64", "complex64", "int16", "int64", "float8_e4m3fn"))
)
@pytest.mark.parametrize("sizes", [(2, 3), (1, 0, 3), (0, 0, 0), (9, 1, 0, 1)], ids=str)
def test_reduce_scatter_gives_own_rows_of_the_sum(
    sizes: tuple[int, ...], dtype: str, backend: str, worlds: Worlds
) -> None:
    """On any dim, even, ragged and skewed."""
    for dim in (0, 1, -1):
        shape = [2, 3]
        shape[dim] = sum(sizes)
        wide = torch.float32 if dtype.startswith(("bf", "float8")) else getattr(torch, dtype)
        total = torch.stack([upstream(rank, shape, dtype).to(wide) for rank in range(len(sizes))]).sum(0, dtype=wide)
        expected = total.to(getattr(torch, dtype)).split(sizes, dim)
        answers = worlds.get(backend, len(sizes)).run(scattered, sizes, dim, dtype)
        assert all(same(answer, wanted) for answer, wanted in zip(answers, expected, strict=True)), answers


def test_sums_of_lazily_conjugated_and_negated_tensors(backend: str, worlds: Worlds) -> None:
    """What is summed are the numbers that such a view stands for."""
    sizes = (1, 0, 4)
    for dim in (0, 1):
        shape = [2, 3]
        shape[dim] = sum(sizes)
        whole = sum(upstream(rank, shape, "complex64").conj().resolve_conj() for rank in range(3))
        for rank, (z, strided, packed) in enumerate(worlds.get(backend, 3).run(lazy_sum, sizes, dim)):
            assert same(z, whole.split(sizes, dim)[rank])
            assert same(strided, whole.imag.split(sizes, dim)[rank])
            assert same(packed, whole.imag.split(sizes, dim)[rank])


@pytest.mark.parametrize("dtype", dtypes(("float64", "bfloat16", "complex64", "int16", "int64", "float8_e4m3fn")))
def test_large_skewed_sums_of_every_element_size(dtype: str, backend: str, worlds: Worlds) -> None:
    """Above 2 MiB, where one rank owns nearly all: elements of 1, 2 and 8 bytes have their places too."""
    sizes = (10, 70_001, 0, 499)
    assert worlds.get(backend, 4).run(skewed_sum, sizes, 32, dtype) == [True] * 4


# ------------------------------------------------------------------ transports


GLOO_ONLY = pytest.mark.only_over("gloo", reason="gloo's collectives are counted, or a transport is forced on it")
EVERY_TRANSPORT = pytest.mark.parametrize(
    ("gather", "total", "small"),
    [
        ("_gather_on_gloo", "_sum_on_gloo", 1 << 40),
        ("_gather_by_broadcasts", "_sum_on_gloo", -1),
        ("_gather_by_broadcasts", "_sum_by_all_reduce", 0),
        pytest.param("_gather_by_broadcasts", "_sum_on_nccl", 0, marks=needs_gloo_reduce_scatter),
    ],
    ids=["all-to-all", "broadcasts and even shares", "broadcasts and all-reduce", "reduce-scatter"],
)


@pytest.mark.parametrize("dtype", ["float32", "int16", "complex64"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4], ids="W{}".format)
@EVERY_TRANSPORT
@GLOO_ONLY
def test_every_transport_gives_the_same(
    gather: str, total: str, small: int, dtype: str, ranks: int, worlds: Worlds
) -> None:
    """Each way to move bytes, forced, over every dim and kind of sizes, and one rank with nearly all rows."""
    # what moves bytes sees neither strides nor how sizes were passed: one kind of each
    cases = [Case(sizes_of(kind, ranks), dim, dtype, "list") for kind in SIZES for dim in DIMS]
    cases += [Case((9,) + (1,) * (ranks - 1), dim, dtype, "list") for dim in (0, 1)]
    by_rank = worlds.get("gloo", ranks).run(run_forced, gather, total, small, cases)
    for rank, results in enumerate(by_rank):
        for case, result in zip(cases, results, strict=True):
            assert same(result.gathered, gathered(case)), case
            assert result.gradient is None or same(result.gradient, gradient(case, rank, "sum")), case


@EVERY_TRANSPORT
@GLOO_ONLY
def test_every_transport_sums_half_precision_in_float32(gather: str, total: str, small: int, worlds: Worlds) -> None:
    """As in test_sound, for each of them, forced."""
    answers = worlds.get("gloo", 4).run(low_precision_sum, gather, total, small)
    assert answers == [[260.0] * 4] * 4


SKEWED = Case((40, 1, 1, 1), 0, "float32", "list", other=(1, 16))


@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [
        (SKEWED, ["all_to_all_single"], ["all_to_all_single"]),
        (SKEWED._replace(given="no"), ["gather", "broadcast", "all_to_all_single"], ["all_to_all_single"]),
        (SKEWED._replace(dim=1, other=(3, 1), sizes=(5, 2, 3, 4)), ["all_to_all_single"], ["all_to_all_single"]),
    ],
    ids=["sizes given", "sizes not given", "dim 1"],
)
@GLOO_ONLY
def test_collectives_are_counted(case: Case, forward: list[str], backward: list[str], worlds: Worlds) -> None:
    """Small tensors: one collective a direction, and the headers where sizes are not given. No other, unseen."""
    for sent, returned in worlds.get("gloo", 4).run(counted, "core sum", case):
        assert [name for name, *_ in sent] == forward
        assert [name for name, *_ in returned] == backward


@pytest.mark.parametrize("dim", [0, 1])
@GLOO_ONLY
def test_only_real_rows_travel(dim: int, worlds: Worlds) -> None:
    """Large and skewed: each rank takes in exactly the other ranks' bytes, with no padding."""
    sizes = (30000, 10, 0, 500)
    case = Case(sizes, dim, "float32", "list", other=(8, 8))
    row = 8 * 4
    for rank, (sent, _) in enumerate(worlds.get("gloo", 4).run(counted, "core local", case)):
        assert [(name, nbytes) for name, nbytes, _ in sent] == [("broadcast", n * row) for n in sizes], rank


def test_the_local_gradient_needs_no_communication(backend: str, worlds: Worlds) -> None:
    """grad='local' is a plain slice."""
    for _, returned in worlds.get(backend, 4).run(counted, "core local", SKEWED):
        assert returned == []


@GLOO_ONLY
def test_a_skewed_sum_is_shared_out(worlds: Worlds) -> None:
    """Large and skewed: no rank takes in more than its even share of each rank's rows, and its own rows of the sum."""
    sizes = (60000, 10, 0, 500)
    case = Case(sizes, 0, "float32", "list", other=(1, 16))
    total = sum(sizes) * 16 * 4
    for rank, (_, returned) in enumerate(worlds.get("gloo", 4).run(counted, "core sum", case)):
        assert [name for name, *_ in returned] == ["all_to_all_single"] * 2
        taken = [into for _, _, into in returned]
        assert abs(taken[0] - total) <= 4 * 4  # W times the W-th part
        assert taken[1] == sizes[rank] * 16 * 4


@pytest.mark.parametrize(("dim", "buffers"), [(0, 1), (1, 2)])
@pytest.mark.only_over("gloo", reason="what is watched is the CPU's allocator")
def test_memory_is_the_output_and_at_most_one_more(dim: int, buffers: int, worlds: Worlds) -> None:
    """Large tensors: along dim 0 nothing but the output is allocated, along others one buffer of its size more."""
    for peak in worlds.get("gloo", 3).run(peak_over_output, dim):
        assert buffers - 0.01 < peak < buffers + 0.05


# ------------------------------------------------------------------ several tensors, and asynchronously


def test_several_tensors_share_one_exchange(backend: str, worlds: Worlds) -> None:
    """A dict, list or tuple of tensors: one header for all, one transfer each, gradients where any rank wants them."""
    from tests.core.core import parts_of_a_batch

    sizes = (2, 0, 3)
    expected = [parts_of_a_batch(rank, n) for rank, n in enumerate(sizes)]
    for rank, seen in enumerate(worlds.get(backend, 3).run(several, sizes)):
        for name, tensor in seen["gathered"].items():
            assert same(tensor, torch.cat([part[name] for part in expected]))
        assert seen["sizes"] == sizes
        headers, rows = (["gather", "broadcast"], ["all_to_all_single"]) if backend == "gloo" else (["all_gather"],) * 2
        assert seen["calls"] == (headers + rows * 3, rows * 3)
        assert seen["containers"] == ("dict", "list", "Parts")
        assert seen["equal"]
        assert seen["requires_grad"] == [True, False, True]
        embeddings, other = seen["gradients"]
        assert embeddings.tolist() == [[6.0] * 3] * sizes[rank]
        assert (other is None) == (rank != 0)
        assert rank != 0 or other.tolist() == [[[5.0] * 2] * 2] * sizes[rank]


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("sizes", "BadInputError", ["rank 0 of 2", "(2, 2)", "(7, 3)"]),
        ("second dtype", "DisagreementError", ["(1, 2) torch.float32", "(1, 3) torch.float32", "(2, 3) torch.float64"]),
        ("second shape", "DisagreementError", ["rank 1 of 2", "(2, 2) torch.float32", "(2, 4) torch.float32"]),
        ("count", "DisagreementError", ["rank 1 of 2", "(2, 2) torch.float32"]),
        ("empty", "BadInputError", ["all_gather[0]", "expected tensors"]),
        ("keys", "DisagreementError", ["rank 1 of 2", "['a', 'b']", "['a', 'c']"]),
        ("one key", "DisagreementError", ["['a']", "['b']"]),
        ("one more", "DisagreementError", ["rank 0 of 2", "[61]", "rank 1 of 2", "[62]"]),
        ("a list in a dict", "BadInputError", ["rank 1 of 2", "['a', 'b']", "list"]),
    ],
)
def test_several_tensors_that_clash_raise_everywhere(
    how: str, error: str, words: list[str], backend: str, worlds: Worlds
) -> None:
    """What differs in any of the tensors is found in the one exchange."""
    outcomes = worlds.get(backend, 2).run(several_that_clash, how)
    assert [outcome.error for outcome in outcomes] == [error] * 2
    assert outcomes[0].message == outcomes[1].message
    assert [word for word in words if word not in outcomes[0].message] == []


def test_as_many_tensors_as_one_likes(backend: str, worlds: Worlds) -> None:
    """A hundred of them, of which each rank wants the gradient of others: the flags take more than one exchange."""
    for rank, (values, gradients) in enumerate(worlds.get(backend, 2).run(a_hundred_tensors)):
        assert values == [[float(i), i + 0.5, i + 0.5] for i in range(100)]
        assert gradients == [3.0 * (i + 1) if i % 2 == rank or i == 99 else None for i in range(100)]


@pytest.mark.parametrize(
    "wants",
    [
        [[True, False, False], [False] * 3],
        [[False] * 3, [False, True, True]],
        [[True, False, False], [True, True, False]],
    ],
    ids=str,
)
def test_a_gradient_is_that_of_the_tensor_that_wants_it(wants: list[list[bool]], backend: str, worlds: Worlds) -> None:
    """Of several tensors, those that some rank wants the gradient of carry one on every rank, and no other."""
    expected = [first or second for first, second in zip(*wants, strict=True)]
    assert worlds.get(backend, 2).run(some_tensors_want_a_gradient, wants) == [expected] * 2


def test_a_container_comes_back_as_what_it_was(backend: str, worlds: Worlds) -> None:
    """A tuple is a tuple, also of one."""
    assert worlds.get(backend, 2).run(containers) == [[True] * 5] * 2


@pytest.mark.parametrize(("grad", "each"), [("sum", [6.0] * 3), ("local", [1.0, 2.0, 3.0])])
def test_the_modules_gradient(grad: str, each: list[float], backend: str, worlds: Worlds) -> None:
    """`AllGather(grad=…)` hands its option on."""
    answers = worlds.get(backend, 3).run(modules_gradient, grad)
    assert answers == [[each[rank]] * (rank + 1) for rank in range(3)]


def test_dicts_go_by_their_keys(backend: str, worlds: Worlds) -> None:
    """Ranks that put the same keys into their dicts in different orders each get theirs, in their own order."""
    for rank, seen in enumerate(worlds.get(backend, 3).run(dicts_in_other_orders)):
        assert seen["order"] == (["b", "a"] if rank == 1 else ["a", "b"])
        assert seen["a"] == [[0.0] * 2, [1.0] * 2, [2.0] * 2]
        assert seen["b"] == [[10.0] * 2, [11.0] * 2, [12.0] * 2]
        assert seen["gradients"] == [[[6.0] * 2], [[60.0] * 2]]


@pytest.mark.parametrize("rows", [2, 200_000], ids=["small", "large"])
def test_an_asynchronous_gather_keeps_its_gradient(rows: int, backend: str, worlds: Worlds) -> None:
    """Started in one order, waited for in another; values and gradients as ever."""
    for seen in worlds.get(backend, 3).run(asynchronously, rows):
        assert seen == {"values": True, "sizes": True, "gradient": True, "requires_grad": (True, False)}


# ------------------------------------------------------------------ groups


SOME_MEMBERS = pytest.mark.parametrize("members", [[1, 3], [0, 2, 3], [1, 2, 3]], ids=str)


@SOME_MEMBERS
def test_a_subgroup_counts_its_own_ranks(members: list[int], backend: str, worlds: Worlds) -> None:
    """Ranks within the group, also where the global ones differ; others are told that they are not in it."""
    expect_own_ranks(members, worlds.get(backend, 4).run(in_subgroup, members))


@SOME_MEMBERS
@EVERY_TRANSPORT
@GLOO_ONLY
def test_every_transport_counts_a_subgroups_own_ranks(
    gather: str, total: str, small: int, members: list[int], worlds: Worlds
) -> None:
    """The same for each way to move bytes, forced."""
    answers = worlds.get("gloo", 4).run(in_forced_subgroup, members, gather, total, small)
    expect_own_ranks(members, answers)


@pytest.mark.parametrize("members", [[1, 2, 3], [3, 0, 2]], ids=str)
def test_everything_else_in_a_subgroup(members: list[int], backend: str, worlds: Worlds) -> None:
    """Containers, asynchronous gathers, second derivatives, errors, and the question whether it is distributed."""
    members = sorted(members)
    rows = [float(rank) for position, rank in enumerate(members) for _ in range(position + 1)]
    answers = worlds.get(backend, 4).run(more_in_subgroup, members)
    for rank, seen in enumerate(answers):
        if rank not in members:
            assert seen is None
            continue
        position = members.index(rank)
        assert seen["gathered"] == (rows, [2 * row for row in rows], (1, 2, 3))
        # 2 x² from one rank's loss, 3 x from those of two others; then 4 for every rank's row, times its own weight
        own = [float(rank)] * (position + 1)
        assert seen["derivatives"] == ([4 * x + 6 for x in own], [4.0 * (position + 1)] * (position + 1))
        assert (seen["clash"].error, seen["distributed"]) == ("DisagreementError", (True, True, False))
        assert "rank 1 of 3" in seen["clash"].message
        assert "float64" in next(line for line in seen["clash"].message.splitlines() if "rank 1 of 3" in line)
        assert seen["alone"]


def expect_own_ranks(members: list[int], answers: list[Any]) -> None:
    world = len(members)
    everyone = sum(range(1, world + 1))
    rows = [float(rank) for position, rank in enumerate(members) for _ in range(position + 1)]
    weight = [float((row + 1) * everyone) for row in range(len(rows))]
    for rank, seen in enumerate(answers):
        if rank not in members:
            assert "not a member of the group" in seen
            continue
        position = members.index(rank)
        start = sum(range(1, position + 1))
        assert seen["gathered"] == rows
        assert seen["sizes"] == tuple(range(1, world + 1))
        assert seen["gradient"] == weight[start : start + position + 1]
        assert seen["local"]
        assert seen["local gradient"] == [(row + 1) * (position + 1) for row in range(start, start + position + 1)]
        assert seen["rows"] == (start, start + position + 1)
        assert seen["scattered"] == [float(world)] * (position + 1)
