# SPDX-License-Identifier: MIT
"""What other libraries exchange, written anew on `all_to_all`: values and gradients as in one process.

`indexed_all_to_all`, `gather_to` and `scatter_from` do what physicsnemo's `indexed_all_to_all_v`, `gather_v` and
`scatter_v` do, and `transpose` what torch-harmonics' distributed transpose does.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from shared_distributed import all_to_all
from tests.support import Worlds
from tests.support.oracle import same, upstream, values
from tests.support.world import device


def indexed_all_to_all(x: Tensor, indices: list[Tensor], group: Any = None) -> Tensor:
    """Rows `indices[r]` of x to rank r. A row may go to several ranks; its gradient is the sum over them."""
    sizes = [len(rows) for rows in indices]
    received, _ = all_to_all(x[torch.cat(indices)], sizes, group=group)
    return received


def gather_to(root: int, x: Tensor, dim: int = 0, group: Any = None) -> Tensor:
    """The rows of all ranks on one rank, and no rows on the others."""
    sizes = [0] * dist.get_world_size(group)
    sizes[root] = x.shape[dim]
    gathered, _ = all_to_all(x, sizes, dim, group=group)
    return gathered


def scatter_from(root: int, x: Tensor, sizes: list[int], dim: int = 0, group: Any = None) -> Tensor:
    """`sizes[r]` rows of one rank's tensor on rank r. The other ranks pass a tensor of that shape with no rows."""
    if dist.get_rank(group) != root:
        sizes = [0] * len(sizes)
    scattered, _ = all_to_all(x, sizes, dim, group=group)
    return scattered


def transpose(x: Tensor, dims: tuple[int, int], sizes: tuple[list[int], list[int]], group: Any = None) -> Tensor:
    """`(… N0 … n1_r …) -> (… n0_r … N1 …)`: split over ranks along the other dim; `sizes`: along both dims."""
    rank = dist.get_rank(group)
    chunks = x.split(sizes[0], dims[0])
    elements = torch.cat([chunk.flatten() for chunk in chunks])
    received, counts = all_to_all(elements, [chunk.numel() for chunk in chunks], group=group)
    parts = []
    for part, size in zip(received.split(counts), sizes[1], strict=True):
        shape = list(chunks[rank].shape)
        shape[dims[1]] = size
        parts.append(part.view(shape))
    return torch.cat(parts, dims[1])


# ------------------------------------------------------------------ on ranks


def with_gradient(x: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """A value, and the gradient of `x` from an upstream gradient that depends on the rank."""
    arriving = upstream(dist.get_rank(), found.shape, "float64").to(device())
    return found.detach(), torch.autograd.grad(found, x, arriving)[0]


def leaf(rank: int, shape: tuple[int, ...]) -> Tensor:
    """A rank's input."""
    return values(rank, shape, "float64").to(device()).requires_grad_()


def indices_of(rank: int, world: int) -> list[Tensor]:
    """Which of its rank + 2 rows a rank sends to each rank: some to several ranks, some to none."""
    return [
        torch.tensor([(rank + other + k) % (rank + 2) for k in range((rank + other) % 3)]) for other in range(world)
    ]


def run_indexed() -> tuple[Tensor, Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    x = leaf(rank, (rank + 2, 3))
    return with_gradient(x, indexed_all_to_all(x, [rows.long().to(device()) for rows in indices_of(rank, world)]))


def run_gather(root: int, dim: int) -> tuple[Tensor, Tensor]:
    rank = dist.get_rank()
    x = leaf(rank, (rank + 1, 2) if dim == 0 else (2, rank + 1))
    return with_gradient(x, gather_to(root, x, dim))


def run_scatter(root: int, dim: int, sizes: list[int]) -> tuple[Tensor, Tensor]:
    rank = dist.get_rank()
    rows = sum(sizes) if rank == root else 0
    x = leaf(rank, (rows, 2) if dim == 0 else (2, rows))
    return with_gradient(x, scatter_from(root, x, sizes, dim))


def run_transpose(dims: tuple[int, int], sizes: tuple[list[int], list[int]]) -> tuple[Tensor, Tensor]:
    rank = dist.get_rank()
    shape = [2, 2, 2]
    shape[dims[0]], shape[dims[1]] = sum(sizes[0]), sizes[1][rank]
    x = leaf(rank, tuple(shape))
    return with_gradient(x, transpose(x, dims, sizes))


# ------------------------------------------------------------------ tests

ranks_ = pytest.mark.parametrize("ranks", [2, 3], ids="W{}".format)


def check(answers: list[tuple[Tensor, Tensor]], xs: list[Tensor], outputs: list[Tensor]) -> None:
    """Values and gradients of all ranks, against the same done in one process."""
    arriving = [upstream(rank, output.shape, "float64") for rank, output in enumerate(outputs)]
    gradients = torch.autograd.grad(outputs, xs, arriving, allow_unused=True)
    for (value, gradient), output, x, wanted in zip(answers, outputs, xs, gradients, strict=True):
        assert same(value, output.detach())
        assert same(gradient, torch.zeros_like(x) if wanted is None else wanted)


@ranks_
def test_rows_by_index(ranks: int, backend: str, worlds: Worlds) -> None:
    """As physicsnemo's `indexed_all_to_all_v`."""
    xs = [values(rank, (rank + 2, 3), "float64").requires_grad_() for rank in range(ranks)]
    outputs = []
    for rank in range(ranks):
        pieces = [xs[source][indices_of(source, ranks)[rank].long()] for source in range(ranks)]
        outputs.append(torch.cat(pieces))
    check(worlds.get(backend, ranks).run(run_indexed), xs, outputs)


@pytest.mark.parametrize("dim", [0, 1])
@ranks_
def test_gathering_to_one_rank(ranks: int, dim: int, backend: str, worlds: Worlds) -> None:
    """As physicsnemo's `gather_v`; the gradient is scattered."""
    root = ranks - 1
    shapes = [(rank + 1, 2) if dim == 0 else (2, rank + 1) for rank in range(ranks)]
    xs = [values(rank, shape, "float64").requires_grad_() for rank, shape in enumerate(shapes)]
    whole = torch.cat(xs, dim)
    outputs = [whole if rank == root else whole.narrow(dim, 0, 0) for rank in range(ranks)]
    check(worlds.get(backend, ranks).run(run_gather, root, dim), xs, outputs)


@pytest.mark.parametrize("dim", [0, 1])
@ranks_
def test_scattering_from_one_rank(ranks: int, dim: int, backend: str, worlds: Worlds) -> None:
    """As physicsnemo's `scatter_v`; the gradient is gathered."""
    root, sizes = 1, [3, 0, 2][:ranks]
    rows = [sum(sizes) if rank == root else 0 for rank in range(ranks)]
    shapes = [(n, 2) if dim == 0 else (2, n) for n in rows]
    xs = [values(rank, shape, "float64").requires_grad_() for rank, shape in enumerate(shapes)]
    outputs = list(xs[root].split(sizes, dim))
    check(worlds.get(backend, ranks).run(run_scatter, root, dim, sizes), xs, outputs)


@pytest.mark.parametrize("dims", [(0, 1), (2, 0), (1, 2)], ids=str)
@ranks_
def test_a_distributed_transpose(ranks: int, dims: tuple[int, int], backend: str, worlds: Worlds) -> None:
    """As torch-harmonics': uneven splits along both dims; one of the ranks may have nothing."""
    sizes = ([2, 1, 3][:ranks], [3, 0, 1][:ranks])
    shapes = []
    for rank in range(ranks):
        shape = [2, 2, 2]
        shape[dims[0]], shape[dims[1]] = sum(sizes[0]), sizes[1][rank]
        shapes.append(tuple(shape))
    xs = [values(rank, shape, "float64").requires_grad_() for rank, shape in enumerate(shapes)]
    outputs = list(torch.cat(xs, dims[1]).split(sizes[0], dims[0]))
    check(worlds.get(backend, ranks).run(run_transpose, dims, sizes), xs, outputs)
