# SPDX-License-Identifier: MIT
"""Calls like those that were made before: checked every time, whatever is remembered of them."""

import importlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.support import Worlds, oracle
from tests.support.world import device

gloo = importlib.import_module("shared_distributed._gloo")
WIDTH = 3

# ------------------------------------------------------------------ on ranks


def values(rank: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    return oracle.values(rank, shape, dtype).to(device())


def rows(dtype: str = "float32") -> Tensor:
    return values(dist.get_rank(), (dist.get_rank() + 2, WIDTH), dtype)


def whole() -> Tensor:
    return torch.cat([values(rank, (rank + 2, WIDTH), "float32") for rank in range(dist.get_world_size())])


def usual_calls() -> None:
    """What every rank has made before."""
    for grad in ("sum", "local"):
        core.all_gather(rows(), grad=grad)
        core.all_gather(rows("float64"), grad=grad)
    core.all_gather(values(0, (4, 4), "float32"))
    core.all_gather(values(0, (4, 4), "float32"), dim=1)
    core.all_gather_variable_dim(rows())


def call_that_differs(kind: str) -> Any:
    """Rank 1 makes another of the usual calls than the others."""
    is_odd = dist.get_rank() == 1
    if kind == "dtype":
        return core.all_gather(rows("float64" if is_odd else "float32"))
    if kind == "dim":
        return core.all_gather(values(0, (4, 4), "float32"), dim=int(is_odd))
    if kind == "shape":
        return core.all_gather(values(0, (4, 4), "float32") if is_odd else rows())
    if kind == "gradient":
        return core.all_gather(rows(), grad="local" if is_odd else "sum")
    if kind == "lengths":  # more rows on one rank, wider ones on the others: read by the wrong width they reach far
        shape = (3000, 1) if is_odd else (10, 6400)
        return core.all_gather(torch.zeros(shape, device=device()))
    if kind == "operation":
        return core.all_gather_variable_dim(rows()) if is_odd else core.all_gather(rows())
    with torch.set_grad_enabled(not is_odd):
        return core.all_gather(rows().requires_grad_())


def differing(kind: str) -> tuple[str, str, bool]:
    """The error's name and words; and whether the group still gathers."""
    usual_calls()
    try:
        call_that_differs(kind)
        error, words = "", ""
    except Exception as raised:  # any error is a result here
        error, words = type(raised).__name__, str(raised)
    return error, words, torch.equal(core.all_gather(rows())[0], whole())


def wanted_by_one_rank() -> tuple[bool, bool]:
    """Whether rows and rank 0's gradient are right, where rank 0 alone has an input that requires one."""
    usual_calls()
    rank, world = dist.get_rank(), dist.get_world_size()
    x = rows().requires_grad_(rank == 0)
    gathered, _ = core.all_gather(x)
    (gathered * (rank + 1)).sum().backward()
    expected = torch.full_like(x, float(sum(range(world + 1))))
    return torch.equal(gathered, whole()), rank != 0 or torch.equal(x.grad, expected)


def with_other_sizes() -> list[bool]:
    """Sizes that change from call to call, empty ones among them; small ones and larger ones."""
    rank, world = dist.get_rank(), dist.get_world_size()
    right = []
    for turn in range(12):
        width = 60000 if turn % 4 == 3 else WIDTH
        sizes = [(turn * (r + 1)) % 5 for r in range(world)]
        parts = [values(r + turn, (n, width), "float32") for r, n in enumerate(sizes)]
        gathered, found = core.all_gather(parts[rank])
        right.append(found == tuple(sizes) and torch.equal(gathered, torch.cat(parts)))
    return right


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize("kind", ["dtype", "dim", "shape", "lengths", "gradient", "operation", "grad mode"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_usual_calls_that_do_not_fit_together_are_told_apart(
    kind: str, ranks: int, backend: str, worlds: Worlds
) -> None:
    """One error on every rank, with every rank's call; the group goes on."""
    answers = worlds.get(backend, ranks).run(differing, kind)
    assert {error for error, _, _ in answers} == {"DisagreementError"}
    assert len({words for _, words, _ in answers}) == 1
    assert all(f"rank {rank} of {ranks}" in answers[0][1] for rank in range(ranks))
    assert all(goes_on for _, _, goes_on in answers)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_gradient_that_one_rank_wants(ranks: int, backend: str, worlds: Worlds) -> None:
    """All take part in its backward, however often the call was made without."""
    assert worlds.get(backend, ranks).run(wanted_by_one_rank) == [(True, True)] * ranks


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sizes_change_from_call_to_call(ranks: int, backend: str, worlds: Worlds) -> None:
    """Nothing is left over from the rows of an earlier call."""
    assert worlds.get(backend, ranks).run(with_other_sizes) == [[True] * 12] * ranks


@pytest.mark.parametrize(("ranks", "room"), [(2, 1 << 20), (8, 256 << 10), (17, 123_360), (1024, 2048)])
def test_what_a_rank_may_send_with_its_header(ranks: int, room: int) -> None:
    """Its share of 2 MiB, and the first rank has a block for each."""
    buffers = gloo.Buffers(0, ranks)
    assert [len(block) for block in buffers.blocks] == [48 + room] * ranks
    assert len(buffers.message) == ranks * (48 + room)
