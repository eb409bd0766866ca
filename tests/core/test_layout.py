# SPDX-License-Identifier: MIT
"""Sizes that know their layout: a tuple of ints, and where this rank's rows are among all of them."""

import copy
import json
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

import shared_distributed as core
from tests.support import Worlds
from tests.support.old_torch import needs_compile
from tests.support.oracle import values
from tests.support.world import device, needs_triton

# ------------------------------------------------------------------ on ranks


def sizes_of_a_gather(sizes: tuple[int, ...], members: list[int]) -> Any:
    """The sizes that a gather among `members` returns, passed back, copied and pickled."""
    rank, group = dist.get_rank(), dist.new_group(members)
    if rank not in members:
        return None
    x = torch.full((sizes[members.index(rank)], 2), float(rank), device=device())
    gathered, found = core.all_gather(x, group=group)
    again, passed_back = core.all_gather(x, sizes=found, group=group)
    copies = [passed_back, copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))]
    return {
        "sizes": tuple(found),
        "copies": [
            (type(each), tuple(each), each.rank) == (core.RowLayout, tuple(found), found.rank) for each in copies
        ],
        "own": torch.equal(found.own(gathered), x) and torch.equal(found.own(again.T, 1), x.T),
        "labels": (torch.arange(len(x)) + found.start).tolist(),
        "scattered": core.reduce_scatter(gathered, sizes=found, group=group)[:, 0].tolist(),
    }


def with_dynamic_shapes() -> list[list[float]]:
    """What is read off the sizes in a region where every size is symbolic, and graphs may break."""
    torch._dynamo.reset()
    rank = dist.get_rank()

    def own_rows(x: Tensor) -> Tensor:
        gathered, sizes = core.all_gather(x)
        return torch.cat([gathered[sizes.rows], sizes.own(gathered) + sizes.start])

    run = torch.compile(own_rows, backend="aot_eager", dynamic=True)
    return [run(torch.full((rank + rows,), float(rank), device=device())).tolist() for rows in (2, 5)]


def contrast(x: Tensor, sizes: Any) -> tuple[Tensor, core.RowLayout, Tensor]:
    """A loss whose labels and scale come from the sizes that the gather returns; and all that they tell."""
    gathered, found = core.all_gather(x, sizes=sizes)
    labels = torch.arange(len(x), device=x.device) + found.start
    loss = cross_entropy(x @ gathered.T, labels, reduction="sum") * found.ddp_scale
    return loss, found, found.own(gathered) + found.ranks(x.device).sum() + found.mask(device=x.device).sum()


def compiled_like_eager(compiler: str, given: str, rounds: list[tuple[int, ...]]) -> list[bool]:
    """Loss, gradient, sizes and tensors of the compiled loss, beside those of the eager one."""
    torch._dynamo.reset()
    rank, run, right = dist.get_rank(), torch.compile(contrast, fullgraph=True, backend=compiler), []
    for sizes in rounds:
        x = (values(rank, (sizes[rank], 3), "float32") / 97).to(device()).requires_grad_()
        passed = {"no": None, "list": list(sizes), "layout": core.RowLayout(sizes, rank=rank)}[given]
        (loss, found, own), (expected, eager, own_eager) = run(x, passed), contrast(x, passed)
        gradients = [torch.autograd.grad(value, x)[0] for value in (loss, expected)]
        right += [torch.allclose(loss, expected), torch.allclose(*gradients, atol=1e-6), torch.allclose(own, own_eager)]
        right += [type(found) is core.RowLayout, found == eager == sizes, found.rank == rank]
    return right


# ------------------------------------------------------------------ in one process


def test_a_layout_matches_a_gathered_batch() -> None:
    """Slices, ranks and masks agree with what a gather does."""
    layouts = [core.RowLayout((3, 0, 2), rank=rank) for rank in range(3)]
    rows = torch.arange(10.0).view(5, 2)
    assert [layout.own(rows).tolist() for layout in layouts] == [rows[:3].tolist(), [], rows[3:].tolist()]
    assert [layout.own(rows.T, 1).shape for layout in layouts] == [(2, 3), (2, 0), (2, 2)]
    cube = torch.arange(30.0).view(2, 3, 5)
    assert layouts[2].own(cube, -1).tolist() == cube[..., 3:].tolist()
    assert layouts[2].own(cube.movedim(2, 1), -2).tolist() == cube.movedim(2, 1)[:, 3:].tolist()
    assert [layout.rows for layout in layouts] == [slice(0, 3), slice(3, 3), slice(3, 5)]
    assert [layout.start for layout in layouts] == [0, 3, 3]
    assert layouts[0].ranks().tolist() == [0, 0, 0, 2, 2]
    assert layouts[0].mask(4).tolist() == [[True] * 3 + [False], [False] * 4, [True] * 2 + [False] * 2]
    padded = torch.zeros(3, 3, 2)
    padded[layouts[0].mask()] = rows
    assert torch.equal(padded[layouts[0].mask()], rows)


def test_a_layout_is_a_tuple_of_ints() -> None:
    """It compares, hashes, unpacks, prints and serialises as one; parts and sums of it are plain tuples."""
    layout = core.RowLayout(torch.tensor([3, 0, 2]), rank=1)
    assert layout == (3, 0, 2)
    assert hash(layout) == hash((3, 0, 2))
    assert [type(n) for n in layout] == [int] * 3
    assert (repr(layout), json.dumps(layout)) == ("(3, 0, 2)", "[3, 0, 2]")
    assert type(layout[1:]) is type(layout + (1,)) is tuple  # noqa: RUF005
    assert core.RowLayout(layout).rank == 1
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        core.RowLayout((1.5, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [None, 3, -1])
def test_a_layout_without_its_rank_raises_where_the_rank_matters(rank: int | None) -> None:
    """Frameworks rebuild containers as `type(x)(…)`, and the rank is lost; so is one that is out of range."""
    known = core.RowLayout((3, 0, 2), rank=1)
    layout = type(known)(n for n in known) if rank is None else core.RowLayout((3, 0, 2), rank=rank)
    assert (layout, layout.world, layout.total, layout.ddp_scale) == ((3, 0, 2), 3, 5, 0.6)
    assert (layout.ranks().tolist(), layout.mask().sum().item()) == ([0, 0, 0, 2, 2], 5)
    for needs_rank in ("rank", "start", "rows"):
        with pytest.raises(core.BadInputError, match=rf"rank {rank} has no place among sizes \(3, 0, 2\)"):
            getattr(layout, needs_rank)
    with pytest.raises(core.BadInputError, match="pass RowLayout"):
        layout.own(torch.ones(5))


def test_own_refuses_a_tensor_that_was_not_gathered_with_these_sizes() -> None:
    """Torch's own error, instead of somebody else's rows."""
    with pytest.raises(RuntimeError, match=r"expects split_sizes to sum exactly to 4"):
        core.RowLayout((1, 2), rank=1).own(torch.ones(3, 4), 1)


def test_the_scale_of_no_rows_is_finite() -> None:
    """Where no rank has a row, the sum over own rows is 0, and stays 0."""
    assert core.RowLayout((0, 0), rank=0).ddp_scale == 2.0


# ------------------------------------------------------------------ what a gather returns


def test_a_gather_returns_sizes_that_know_their_rank(backend: str, worlds: Worlds) -> None:
    """Their rank in its group, of which world rank 0 is none; also copied, pickled and passed back."""
    sizes, members = (3, 0, 2), [1, 2, 3]
    answers = worlds.get(backend, 4).run(sizes_of_a_gather, sizes, members)
    assert answers[0] is None
    for position, (member, answer) in enumerate(zip(members, answers[1:], strict=True)):
        start = sum(sizes[:position])
        assert answer == {
            "sizes": sizes,
            "copies": [True] * 4,
            "own": True,
            "labels": list(range(start, start + sizes[position])),
            "scattered": [3.0 * member] * sizes[position],
        }


def test_alone_the_layout_is_that_of_rank_0() -> None:
    """Without a process group too."""
    _, sizes = core.all_gather(torch.ones(3, 2))
    assert (sizes.rank, sizes.start, sizes.rows, sizes.ddp_scale) == (0, 0, slice(0, 3), 1 / 3)


@needs_compile
@pytest.mark.only_over("gloo", "nccl", reason="compiled code calls what the other tests call here")
@pytest.mark.parametrize(
    ("given", "rounds"),
    [
        ("no", [(3, 2), (5, 6), (3, 0)]),
        ("list", [(3, 2), (4, 0)]),
        ("layout", [(3, 2), (5, 6)]),
    ],
)
def test_layouts_in_compiled_regions(given: str, rounds: list[tuple[int, ...]], backend: str, worlds: Worlds) -> None:
    """Made, asked, returned and passed in there, with an empty rank too: the same as eager."""
    for right in worlds.get(backend, 2).run(compiled_like_eager, "aot_eager", given, rounds):
        assert all(right), right


@needs_compile
@needs_triton
@pytest.mark.only_over("gloo", "nccl", reason="compiled code calls what the other tests call here")
def test_layouts_under_the_default_compiler(backend: str, worlds: Worlds) -> None:
    """The same."""
    for right in worlds.get(backend, 2).run(compiled_like_eager, "inductor", "no", [(0, 4)]):
        assert all(right), right


@needs_compile
@pytest.mark.only_over("gloo", "nccl", reason="compiled code calls what the other tests call here")
def test_layouts_where_every_size_is_symbolic(backend: str, worlds: Worlds) -> None:
    """`dynamic=True` without a full graph: this rank's slice, its part and its start."""
    for rank, found in enumerate(worlds.get(backend, 2).run(with_dynamic_shapes)):
        for rows, values_found in zip((2, 5), found, strict=True):
            assert values_found == [float(rank)] * (rank + rows) + [rank + float(rank * rows)] * (rank + rows)
