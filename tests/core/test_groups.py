# SPDX-License-Identifier: MIT
"""Gathers among some ranks only."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import shared_distributed as core
from tests.core.test_transports import EVERY_TRANSPORT, GLOO_ONLY, forced
from tests.support import Worlds
from tests.support.calls import attempt
from tests.support.world import device

# ------------------------------------------------------------------ on ranks


def in_subgroup(members: list[int]) -> Any:
    """A gather among some ranks only; what the group's ranks see."""
    rank, group = dist.get_rank(), dist.new_group(members)
    if rank not in members:
        try:
            core.all_gather(torch.ones(1, device=device()), group=group)
        except core.BadInputError as error:
            return str(error)
        return "no error"
    position = members.index(rank)
    x = torch.full((position + 1, 2), float(rank), device=device(), requires_grad=True)
    gathered, sizes = core.all_gather(x, group=group)
    weight = torch.arange(1.0, len(gathered) + 1, device=device()).unsqueeze(1) * (position + 1)
    (gathered * weight).sum().backward()
    assert x.grad is not None
    y = x.detach().requires_grad_()
    local, _ = core.AllGather(grad="local", group=group)(y)
    (local * weight).sum().backward()
    assert y.grad is not None
    return {
        "gathered": gathered[:, 0].tolist(),
        "sizes": sizes,
        "gradient": x.grad[:, 0].tolist(),
        "local": torch.equal(local, gathered),
        "local gradient": y.grad[:, 0].tolist(),
        "rows": (sizes.rows.start, sizes.rows.stop),
        "scattered": core.reduce_scatter(torch.ones(sum(sizes), device=device()), sizes=sizes, group=group).tolist(),
    }


def in_forced_subgroup(members: list[int], way: str, small: int) -> Any:
    """The same, over the named transports only."""
    with forced(way, small):
        return in_subgroup(members)


def more_in_subgroup(members: list[int]) -> Any:
    """Containers, asynchronous gathers, second derivatives and errors among some ranks only."""
    rank, group, alone = dist.get_rank(), dist.new_group(members), [dist.new_group([r]) for r in range(4)]
    if rank not in members:
        return None
    position = members.index(rank)
    x = torch.full((position + 1,), float(rank), device=device(), requires_grad=True)
    (a, b), sizes = core.all_gather_async((x, 2 * x), group=group).wait()
    loss = (a * b).sum() if position == 1 else (a + b).sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad((position + 1) * first.sum(), x)
    clash = attempt(lambda: core.all_gather(x.double() if position == 1 else x, group=group))
    return {
        "gathered": (a.tolist(), b.tolist(), sizes),
        "derivatives": (first.tolist(), second.tolist()),
        "clash": clash,
        "distributed": (core.is_distributed(), core.is_distributed(group), core.is_distributed(alone[rank])),
        "alone": core.all_gather(x, group=alone[rank])[0] is x,
    }


# ------------------------------------------------------------------ tests


SOME_MEMBERS = pytest.mark.parametrize("members", [[1, 3], [0, 2, 3], [1, 2, 3]], ids=str)


@SOME_MEMBERS
def test_a_subgroup_counts_its_own_ranks(members: list[int], backend: str, worlds: Worlds) -> None:
    """Ranks within the group, also where the global ones differ; others are told that they are not in it."""
    expect_own_ranks(members, worlds.get(backend, 4).run(in_subgroup, members))


@SOME_MEMBERS
@EVERY_TRANSPORT
@GLOO_ONLY
def test_every_transport_counts_a_subgroups_own_ranks(way: str, small: int, members: list[int], worlds: Worlds) -> None:
    """The same for each way to move bytes, forced."""
    answers = worlds.get("gloo", 4).run(in_forced_subgroup, members, way, small)
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
