# SPDX-License-Identifier: MIT
"""The adjoint: own rows of the sum over ranks, of every dtype."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import shared_distributed as core
from tests.support import Worlds
from tests.support.calls import Outcome, attempt, usable_after
from tests.support.old_torch import dtypes
from tests.support.oracle import same, upstream
from tests.support.world import device

# ------------------------------------------------------------------ on ranks


def scattered(sizes: tuple[int, ...], dim: int, dtype: str) -> Tensor:
    """This rank's part of the sum."""
    shape = [2, 3]
    shape[dim] = sum(sizes)
    return core.reduce_scatter(upstream(dist.get_rank(), shape, dtype).to(device()), dim, sizes=sizes)


def lazy_sum(sizes: tuple[int, ...], dim: int, other: int) -> list[Tensor]:
    """This rank's part of the sum of lazily conjugated, and of lazily negated tensors, strided and contiguous."""
    shape = [other, other]
    shape[dim] = sum(sizes)
    z = upstream(dist.get_rank(), shape, "complex64").to(device())
    lazy = [z.conj(), z.conj().imag, torch._neg_view(z.imag.contiguous())]
    assert [t.is_neg() for t in lazy] == [False, True, True]
    return [core.reduce_scatter(t, dim, sizes=sizes) for t in lazy]


def skewed_sum(sizes: tuple[int, ...], columns: int, dtype: str) -> bool:
    """A sum of which one rank owns nearly all; whether this rank's part is right."""
    rank, shape = dist.get_rank(), (sum(sizes), columns)
    mine = core.reduce_scatter(upstream(rank, shape, dtype).to(device()), sizes=sizes)
    wide = torch.float32 if mine.is_floating_point() and mine.element_size() < 4 else mine.dtype
    whole = sum(upstream(r, shape, dtype).to(wide) for r in range(len(sizes)))
    return torch.equal(mine.cpu(), whole.to(mine.dtype).split(sizes)[rank])


def along_a_bool() -> list[list[float]]:
    """True is dim 1, as in `all_gather`."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = upstream(rank, (2, 2 * world), "float32").to(device())
    return list(core.reduce_scatter(x, True, sizes=[2] * world).tolist())


def sum_of(dtype: str) -> Outcome:
    """A sum of bytes that are taken for numbers of this dtype."""
    x = torch.zeros(2 * dist.get_world_size(), 4, dtype=torch.uint8, device=device()).view(getattr(torch, dtype))
    return usable_after(attempt(lambda: core.reduce_scatter(x, sizes=[2] * dist.get_world_size())))


# ------------------------------------------------------------------ tests


def test_a_bool_counts_as_a_dim(backend: str, worlds: Worlds) -> None:
    """As in `all_gather`."""
    total = upstream(0, (2, 4), "float32") + upstream(1, (2, 4), "float32")
    for rank, own in enumerate(worlds.get(backend, 2).run(along_a_bool)):
        assert own == total.split([2, 2], 1)[rank].tolist()


@pytest.mark.parametrize("dtype", dtypes(("float4_e2m1fn_x2", "bits8")))
def test_what_cannot_be_added_is_refused_on_every_rank(dtype: str, backend: str, worlds: Worlds) -> None:
    """One error before anything is sent; the group stays usable."""
    outcomes = worlds.get(backend, 2).run(sum_of, dtype)
    assert [outcome.error for outcome in outcomes] == ["BadInputError"] * 2
    assert outcomes[0].message == outcomes[1].message
    assert f"torch.{dtype} cannot be added" in outcomes[0].message


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


@pytest.mark.parametrize("other", [2, 60_000], ids=["small", "large"])
def test_sums_of_lazily_conjugated_and_negated_tensors(other: int, backend: str, worlds: Worlds) -> None:
    """What is summed are the numbers that such a view stands for."""
    sizes = (1, 0, 4)
    for dim in (0, 1):
        shape = [other, other]
        shape[dim] = sum(sizes)
        whole = sum(upstream(rank, shape, "complex64").conj().resolve_conj() for rank in range(3))
        for rank, (z, strided, packed) in enumerate(worlds.get(backend, 3).run(lazy_sum, sizes, dim, other)):
            assert same(z, whole.split(sizes, dim)[rank])
            assert same(strided, whole.imag.split(sizes, dim)[rank])
            assert same(packed, whole.imag.split(sizes, dim)[rank])


@pytest.mark.parametrize("dtype", dtypes(("float64", "bfloat16", "complex64", "int16", "int64", "float8_e4m3fn")))
def test_large_skewed_sums_of_every_element_size(dtype: str, backend: str, worlds: Worlds) -> None:
    """Above 2 MiB, where one rank owns nearly all: elements of 1, 2 and 8 bytes have their places too."""
    sizes = (10, 70_001, 0, 499)
    assert worlds.get(backend, 4).run(skewed_sum, sizes, 32, dtype) == [True] * 4
