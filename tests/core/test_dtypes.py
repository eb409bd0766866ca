# SPDX-License-Identifier: MIT
"""Every dense dtype, and lazy views: the bytes that go in come out."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist

import shared_distributed as core
from tests.support import Worlds
from tests.support.old_torch import VERSION
from tests.support.oracle import values
from tests.support.watch import slots
from tests.support.world import device

# ------------------------------------------------------------------ on ranks


DENSE = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex32",
    "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
]  # fmt: skip


def every_dtype(sizes: tuple[int, ...], dim: int, room: int | None) -> dict[str, bool]:
    """Bytes in, the same bytes out, for each dense dtype; so many of them may come with the headers."""
    with nullcontext() if room is None else slots(room):
        return {name: is_gathered(name, sizes, dim) for name in DENSE if hasattr(torch, name)}


def is_gathered(name: str, sizes: tuple[int, ...], dim: int) -> bool:
    dtype = getattr(torch, name)
    size = torch.empty(0, dtype=dtype).element_size()
    parts = []
    for r, n in enumerate(sizes):
        rows, columns = (n, 3) if dim == 0 else (3, n)
        numbers = torch.arange(rows * columns * size) * 7 + 31 * r
        parts.append((numbers % (2 if name == "bool" else 251)).to(torch.uint8).view(rows, columns * size))
    gathered, _ = core.all_gather(parts[dist.get_rank()].to(device()).view(dtype), dim)
    whole = gathered.contiguous().view(torch.uint8).cpu()
    return gathered.dtype == dtype and torch.equal(whole, torch.cat(parts, dim))


def conjugated() -> tuple[list[complex], list[complex]]:
    """A lazily conjugated and a lazily negated view, gathered."""
    rank = dist.get_rank()
    z = values(rank, (rank + 1,), "complex64").to(device())
    return core.all_gather(z.conj())[0].tolist(), core.all_gather(z.conj().imag)[0].tolist()


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize("room", [None, 0], ids=["one round", "two rounds"])
@pytest.mark.parametrize("dim", [0, 1])
def test_every_dense_dtype(dim: int, room: int | None, backend: str, worlds: Worlds) -> None:
    """All of them travel, bit for bit, also where the backend or torch.cat does not know them."""
    for seen in worlds.get(backend, 2).run(every_dtype, (2, 3), dim, room):
        assert [name for name, right in seen.items() if not right] == []
        assert len(seen) >= (20 if VERSION >= (2, 4) else 13)  # no fp8, no unsigned of more than 8 bits


def test_conjugated_and_negated_views(backend: str, worlds: Worlds) -> None:
    """A lazy view is resolved before its bytes travel."""
    parts = [values(rank, (rank + 1,), "complex64") for rank in range(2)]
    expected = torch.cat([p.conj().resolve_conj() for p in parts]).tolist()
    negated = torch.cat([-p.imag for p in parts]).tolist()
    assert worlds.get(backend, 2).run(conjugated) == [(expected, negated)] * 2
