# SPDX-License-Identifier: MIT
"""The strict process group itself: each of NCCL's rules, broken once, is an error on every rank."""

from typing import Any

import pytest
import torch

from tests.house.rules import broken, early_look, gathered_by, kept, lacking, operations
from tests.support import Worlds
from tests.support.oracle import same, upstream, values

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
        ("all_to_all_single", "RuleBroken", "not carried"),
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
        assert same(seen["own"], sums[sum(sizes), 2].split(sizes)[rank])
        assert same(seen["even"], sums[2 * world,].split(2)[rank])
        assert same(seen["total"], sums[4,])
        assert same(seen["root"], values(world - 1, (3,), "int64"))


def test_results_are_not_there_before_wait(worlds: Worlds) -> None:
    """An operation under way has written nothing yet, so that nobody gets by without `wait`."""
    assert worlds.get("nccl-rules", 2).run(early_look) == [([1.0, 1.0], [2.0, 2.0])] * 2


# ------------------------------------------------------------------ the core and the way of the originals, over it


@pytest.mark.parametrize(
    ("sizes", "gather", "total"),
    [
        ((2, 3), "all_gather of torch.uint8, numels [16, 24]", "reduce_scatter of torch.float32, numels [4, 6]"),
        (
            (2, 2),
            "all_gather_single of torch.uint8, numels [16, 32]",
            "reduce_scatter_single of torch.float32, numels [4, 8]",
        ),
    ],
    ids=["uneven", "even"],
)
def test_the_core_takes_the_path_that_nccl_takes(
    sizes: tuple[int, ...], gather: str, total: str, worlds: Worlds
) -> None:
    """The headers in one all-gather, then NCCL's rows of the transport table, and nothing else."""
    for forward, backward in worlds.get("nccl-rules", 2).run(operations, sizes):
        header, *rows = forward
        assert header == "all_gather of torch.uint8, numels [32, 32]"  # four integers of each rank
        assert (rows, backward) == ([gather], [total])


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
