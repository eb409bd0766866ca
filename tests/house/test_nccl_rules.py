# SPDX-License-Identifier: MIT
"""The strict process group itself: each of NCCL's rules, broken once, is an error on every rank."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.support import Worlds
from tests.support.calls import Outcome, attempt
from tests.support.gather import pad_to_longest, scatter_in_memory
from tests.support.oracle import same, upstream, values

# ------------------------------------------------------------------ on ranks


def input_of(rank: int) -> Tensor:
    return values(rank, (2, 3), "float32")


def gather_list(x: Tensor, parts: list[Tensor] | None = None) -> None:
    dist.all_gather([torch.empty_like(x) for _ in range(2)] if parts is None else parts, x)


def uneven(rank: int, *, strided: bool) -> list[Tensor]:
    """Room for two and three rows of floats; strided: the first part has gaps in memory."""
    parts = list(torch.zeros(5, 3).split([2, 3]))
    return [scatter_in_memory(parts[0]), parts[1]] if strided else parts


def in_turn(calls: list[Callable[[], Any]], *, backwards: bool) -> None:
    for call in reversed(calls) if backwards else calls:
        call()


def break_rule(rule: str, rank: int) -> Any:
    """What rank 1 of two does wrong, while rank 0 keeps to the rule."""
    wrong, x = rank == 1, input_of(rank)
    ones = torch.ones(4)
    match rule:
        case "non-contiguous input":
            return gather_list(scatter_in_memory(x) if wrong else x)
        case "non-contiguous output":
            out = torch.empty(4, 3)
            return dist.all_gather_single(scatter_in_memory(out) if wrong else out, x)
        case "non-contiguous part of an uneven list":
            return gather_list(values(rank, (rank + 2, 3), "float32"), uneven(rank, strided=wrong))
        case "non-contiguous part of an uneven sum":
            return dist.reduce_scatter(torch.empty(rank + 2, 3), uneven(rank, strided=wrong))
        case "non-contiguous sum":
            whole = torch.ones(4, 3)
            return dist.reduce_scatter_single(torch.empty(2, 3), scatter_in_memory(whole) if wrong else whole)
        case "expanded":
            return dist.all_reduce(torch.ones(1).expand(4) if wrong else ones)
        case "lazily negated":
            imaginary = torch.ones(4, dtype=torch.complex64).conj().imag
            return gather_list(imaginary.as_strided((4,), (1,)) if wrong else ones)
        case "sparse":
            return dist.all_reduce(ones.to_sparse() if wrong else ones)
        case "int16" | "uint16":
            return gather_list(x.to(getattr(torch, rule) if wrong else torch.int32))
        case "sum of complex numbers":
            return dist.reduce_scatter_single(
                torch.empty(2, dtype=torch.complex64), torch.ones(4, dtype=torch.complex64)
            )
        case "sum of fp8":
            return dist.all_reduce(ones.to(torch.float8_e4m3fn))
        case "bitwise":
            return dist.all_reduce(torch.ones(4, dtype=torch.int32), op=dist.ReduceOp.BAND)
        case "numel":
            return dist.all_reduce(torch.ones(5 if wrong else 4))
        case "numels of a list":
            rows = [2, 4] if wrong else [2, 3]
            return gather_list(torch.ones(rows[rank], 3), [torch.empty(n, 3) for n in rows])
        case "no room":
            return dist.all_gather_single(torch.empty(5 if wrong else 4, 3), x)
        case "own place":
            return gather_list(torch.ones(9 if wrong else 6), [torch.empty(6), torch.empty(6)])
        case "dtype by rank":
            return dist.all_reduce(ones.to(torch.int32) if wrong else ones)
        case "order":
            return in_turn([lambda: dist.all_reduce(ones), lambda: gather_list(ones)], backwards=wrong)
        case "counts":
            counts = [2, 1] if wrong else [2, 2]
            return dist.all_to_all_single(torch.empty(sum(counts)), torch.ones(4), counts, [2, 2])
        case "root":
            return dist.broadcast(ones, src=rank)
        case "barrier":
            return dist.barrier() if wrong else dist.all_reduce(ones)
    raise LookupError(rule)


def broken(rule: str) -> tuple[Outcome, list[float]]:
    """A broken rule, and then a call in the same group that keeps to all of them."""
    rank = dist.get_rank()
    outcome = attempt(lambda: break_rule(rule, rank))
    total = torch.ones(2)
    dist.all_reduce(total)
    return outcome, total.tolist()


def lacking(name: str) -> Outcome:
    """Something that gloo has and NCCL has not, or that is not carried."""
    t, parts = torch.ones(2), [torch.ones(2), torch.ones(2)]
    calls: dict[str, Callable[[], Any]] = {
        "recv_anysource": lambda: dist.recv(t),
        "monitored_barrier": dist.monitored_barrier,
        "allgather_coalesced": lambda: dist.group.WORLD.allgather_coalesced([parts], [t]),  # type: ignore[union-attr]
        "all_to_all": lambda: dist.all_to_all(parts, parts),
        "send": lambda: dist.send(t, dst=1 - dist.get_rank()),
    }
    return attempt(calls[name])


def kept(sizes: tuple[int, ...]) -> dict[str, Any]:
    """Every operation that is carried, within the rules."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine, gathered = values(rank, (sizes[rank], 2), "float32"), torch.zeros(sum(sizes), 2)
    dist.all_gather(list(gathered.split(sizes)), mine)
    fp8 = values(rank, (3,), "float8_e4m3fn")
    rows = [scatter_in_memory(torch.zeros(3)).to(torch.float8_e4m3fn) for _ in range(world)]
    dist.all_gather(rows, fp8)  # even lists may have gaps in memory
    single = torch.zeros(world, 2, 3)
    dist.all_gather_single(single, values(rank, (2, 3), "float32"))
    swapped = torch.zeros(sum(sizes), 2)
    sent = torch.cat([values(rank + 3 * other, (sizes[rank], 2), "float32") for other in range(world)])
    dist.all_to_all_single(swapped, sent, list(sizes), [sizes[rank]] * world)
    own = torch.zeros(sizes[rank], 2)
    dist.reduce_scatter(own, list(upstream(rank, (sum(sizes), 2), "float32").split(sizes)))
    even = torch.zeros(2)
    dist.reduce_scatter_single(even, upstream(rank, (2 * world,), "float32"))
    total, root = upstream(rank, (4,), "float32"), values(rank, (3,), "int64")
    dist.all_reduce(total)
    dist.broadcast(root, src=world - 1)
    return {
        "list": gathered, "fp8": rows, "single": single, "swapped": swapped, "own": own, "even": even, "total": total,
        "root": root,
    }  # fmt: skip


def early_look() -> tuple[list[float], list[float]]:
    """What an output holds before and after `wait`."""
    t = torch.ones(2)
    work = dist.all_reduce(t, async_op=True)
    before = t.tolist()
    work.wait()
    return before, t.tolist()


# ------------------------------------------------------------------ the core and the way of the originals, over it


def operations(sizes: tuple[int, ...], columns: int) -> tuple[list[str], list[str]]:
    """What reaches the group in a gather whose sizes are not given, and in its summed backward."""
    group: Any = dist.group.WORLD
    group.log.clear()
    x = values(dist.get_rank(), (sizes[dist.get_rank()], columns), "float32").requires_grad_()
    gathered, _ = core.all_gather(x)
    forward = list(group.log)
    group.log.clear()
    gathered.sum().backward()
    return forward, list(group.log)


def pad_and_gather(x: Tensor, dim: int) -> Tensor:
    """The naive way, which asks for the sizes first."""
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([x.shape[dim]]))
    return pad_to_longest(x, dim, [int(n) for n in sizes])


def gathered_by(how: str, contiguous: bool) -> Outcome:
    """A ragged gather, along dim 1, of a tensor that lies well or scattered in memory."""
    rank = dist.get_rank()
    x = values(rank, (2, rank + 1), "float32")
    x = x if contiguous else scatter_in_memory(x)
    return attempt(lambda: pad_and_gather(x, 1) if how == "pad and gather" else core.all_gather(x, 1)[0])


# ------------------------------------------------------------------ tests

pytestmark = pytest.mark.only_over("nccl-rules", reason="the strict group's own tests")

# the rule that rank 1 breaks (or both do) -> words of the message that every rank gets
BROKEN = {
    "non-contiguous input": ["all_gather", "a non-contiguous float32 tensor of shape (2, 3), strides (2, 4)"],
    "non-contiguous output": ["all_gather_single", "a non-contiguous float32 tensor of shape (4, 3)"],
    "non-contiguous part of an uneven list": ["all_gather", "a non-contiguous float32 tensor of shape (2, 3)"],
    "non-contiguous part of an uneven sum": ["reduce_scatter", "a non-contiguous float32 tensor of shape (2, 3)"],
    "non-contiguous sum": ["reduce_scatter_single", "a non-contiguous float32 tensor of shape (4, 3)"],
    "expanded": ["all_reduce", "a non-contiguous float32 tensor of shape (4,), strides (0,)"],
    "lazily negated": ["lazily conjugated or negated"],
    "sparse": ["a torch.sparse_coo tensor"],
    "int16": ["a int16 tensor of shape (2, 3): NCCL does not know this dtype"],
    "uint16": ["a uint16 tensor of shape (2, 3): NCCL does not know this dtype"],
    "sum of complex numbers": ["a complex64 tensor of shape (2,): NCCL does not know this dtype"],
    "sum of fp8": ["a float8_e4m3fn tensor of shape (4,): NCCL does not reduce this dtype"],
    "bitwise": ["NCCL does not reduce this dtype, or not by this operation"],
    "numel": [
        "rank 0 of 2: all_reduce of torch.float32, numels [4]",
        "rank 1 of 2: all_reduce of torch.float32, numels [5]",
    ],
    "numels of a list": ["numels [6, 9]", "numels [6, 12]"],
    "no room": ["15 elements of torch.float32 where 12 of torch.float32 have their place"],
    "own place": ["9 elements of torch.float32 where 6 of torch.float32 have their place"],
    "dtype by rank": ["rank 0 of 2: all_reduce of torch.float32", "rank 1 of 2: all_reduce of torch.int32"],
    "order": ["rank 0 of 2: all_reduce of", "rank 1 of 2: all_gather of"],
    "counts": ["counts of all_to_all_single", "received counts [2, 1], but the ranks send [2, 2]"],
    "root": ["rank 0 of 2: broadcast from rank 0", "rank 1 of 2: broadcast from rank 1"],
    "barrier": ["rank 0 of 2: all_reduce", "rank 1 of 2: barrier"],
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_the_same_error_on_every_rank(rule: str, worlds: Worlds) -> None:
    """Where NCCL would raise on one rank and hang on the others, or move the wrong bytes. The group stays usable."""
    answers = worlds.get("nccl-rules", 2).run(broken, rule)
    outcomes = [outcome for outcome, _ in answers]
    assert [outcome.error for outcome in outcomes] == ["RuleBroken"] * 2, outcomes
    assert outcomes[0].message == outcomes[1].message
    for words in BROKEN[rule]:
        assert words in outcomes[0].message
    assert [total for _, total in answers] == [[2.0, 2.0]] * 2


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("recv_anysource", "RuleBroken", "gloo has it, NCCL has not"),
        ("allgather_coalesced", "RuleBroken", "gloo has it, NCCL has not"),
        ("monitored_barrier", "ValueError", "GLOO"),  # torch says so itself, each version in its words
        ("all_to_all", "RuleBroken", "not carried"),
        ("send", "RuleBroken", "not carried"),
    ],
)
def test_what_nccl_lacks_is_refused(name: str, error: str, words: str, worlds: Worlds) -> None:
    """Nothing falls back to gloo unseen, neither what NCCL lacks nor what the group does not carry."""
    for outcome in worlds.get("nccl-rules", 2).run(lacking, name):
        assert outcome.error == error
        assert words in outcome.message


@pytest.mark.parametrize("sizes", [(2, 3), (1, 0, 3), (2, 2, 2)], ids=str)
def test_within_the_rules_the_data_is_right(sizes: tuple[int, ...], worlds: Worlds) -> None:
    """Every operation that is carried, against one process; uneven lists and empty parts too."""
    world = len(sizes)
    sums = {
        shape: sum(upstream(rank, shape, "float32") for rank in range(world))
        for shape in [(sum(sizes), 2), (2 * world,), (4,)]
    }
    for rank, seen in enumerate(worlds.get("nccl-rules", world).run(kept, sizes)):
        assert same(seen["list"], torch.cat([values(r, (n, 2), "float32") for r, n in enumerate(sizes)]))
        assert all(same(row, values(r, (3,), "float8_e4m3fn")) for r, row in enumerate(seen["fp8"]))
        assert same(seen["single"], torch.stack([values(r, (2, 3), "float32") for r in range(world)]))
        expected = [values(r + 3 * rank, (n, 2), "float32") for r, n in enumerate(sizes)]
        assert same(seen["swapped"], torch.cat(expected))
        assert same(seen["own"], sums[sum(sizes), 2].split(sizes)[rank])
        assert same(seen["even"], sums[2 * world,].split(2)[rank])
        assert same(seen["total"], sums[4,])
        assert same(seen["root"], values(world - 1, (3,), "int64"))


def test_results_are_not_there_before_wait(worlds: Worlds) -> None:
    """An operation under way has written nothing yet, so that nobody gets by without `wait`."""
    assert worlds.get("nccl-rules", 2).run(early_look) == [([1.0, 1.0], [2.0, 2.0])] * 2


# ------------------------------------------------------------------ the core and the way of the originals, over it


@pytest.mark.parametrize(
    ("sizes", "columns", "gather", "total"),
    [
        ((2, 3), 2, [], "reduce_scatter of torch.float32, numels [4, 6]"),
        (
            (2, 3),
            8192,
            ["all_gather of torch.uint8, numels [65536, 98304]"],
            "reduce_scatter of torch.float32, numels [16384, 24576]",
        ),
        (
            (2, 2),
            8192,
            ["all_gather_single of torch.uint8, numels [65536, 131072]"],
            "reduce_scatter_single of torch.float32, numels [16384, 32768]",
        ),
    ],
    ids=["small", "uneven", "even"],
)
def test_the_core_takes_the_path_that_nccl_takes(
    sizes: tuple[int, ...], columns: int, gather: list[str], total: str, worlds: Worlds
) -> None:
    """The headers and small rows in one all-gather, then NCCL's rows of the transport table, and nothing else."""
    for forward, backward in worlds.get("nccl-rules", 2).run(operations, sizes, columns):
        header, *rows = forward
        # of each rank six integers, and a slot
        assert header == "all_gather_single of torch.uint8, numels [32816, 65632]"
        assert (rows, backward) == (gather, [total])


def test_a_naive_gather_of_a_non_contiguous_tensor_fails_on_it(worlds: Worlds) -> None:
    """Pad to the longest and gather: gloo does not mind, NCCL would hang. The core gathers it over both."""
    expected = torch.cat([values(rank, (2, rank + 1), "float32") for rank in range(3)], 1)

    def run(backend: str, how: str, contiguous: bool) -> list[Any]:
        return worlds.get(backend, 3).run(gathered_by, how, contiguous)

    for naive in run("nccl-rules", "pad and gather", False):
        assert naive.error == "RuleBroken"
        assert "rank 2 of 3: all_gather of torch.float32, numels [6, 6, 6]: a non-contiguous float32" in naive.message
    fine = [
        *run("gloo", "pad and gather", False),
        *run("nccl-rules", "pad and gather", True),
        *run("nccl-rules", "the core", False),
    ]
    assert all(same(outcome.value, expected) for outcome in fine)
