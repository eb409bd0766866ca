# SPDX-License-Identifier: MIT
"""Move: only real rows travel, into views of the output."""

from operator import index
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ._world import _graph_break


class _Rows(NamedTuple):
    """Move: only real rows travel. Rank r has `sizes[r]` of them along `dim`; the output has all, in rank order."""

    dim: int
    sizes: Any
    summed: bool = False  # whether the gradient is that of all ranks' losses
    group: Any = None

    @property
    def backends(self) -> dict[str, str]:  # such as {"cpu": "gloo", "cuda": "nccl"}; torch 2.0 lists cpu:nccl as well
        return dict(e.split(":", 1) for e in str(dist.get_backend_config(self.group)).split(",") if e != "cpu:nccl")

    @_graph_break
    def gather(self, x: Tensor) -> Tensor:
        """`(… n_r …) -> (… sum(n) …)`, contiguous and not a view. Carries no gradient."""
        dim, x = index(self.dim) % x.ndim, x.detach().to_dense() if x.is_sparse else x.detach()
        out = x.new_empty((*x.shape[:dim], sum(self.sizes), *x.shape[dim + 1 :]))
        target = out.movedim(dim, 0)
        rows = target if target.is_contiguous() else target.new_empty(target.shape)
        parts = rows.split(self.sizes)
        parts[dist.get_rank(self.group)].copy_(x.movedim(dim, 0))  # also resolves strides and conjugation
        self.spread(rows.view(-1).view(torch.uint8), [part.numel() * part.element_size() for part in parts])
        return out if rows is target else out.copy_(rows.movedim(0, dim))

    def spread(self, rows: Tensor, counts: list[int]) -> None:
        """This rank's bytes to all others, and theirs into `rows`. As bytes, since gloo knows few dtypes."""
        blocks, group = rows.split(counts), self.group or dist.group.WORLD
        if "nccl" in self.backends[rows.device.type]:  # takes uneven lists, in one launch
            dist.all_gather(list(blocks), blocks[dist.get_rank(group)], group)
        else:
            for work in [dist.broadcast(b, dist.get_global_rank(group, r), group, True) for r, b in enumerate(blocks)]:
                work.wait()

    @_graph_break
    def sum(self, x: Tensor) -> Tensor:
        """`(… sum(n) …) -> (… n_r …)`: this rank's rows of the sum over ranks. Carries no gradient."""
        x = x.detach().to_dense() if x.is_sparse else x.detach()
        dtype = torch.float32 if x.element_size() < 4 else x.dtype  # half precision is summed in float32
        total = x.new_empty(x.shape, dtype=dtype).copy_(x)  # contiguous, and the caller's gradient stays as it is
        dist.all_reduce(total, group=self.group)
        return self.own(total).to(x.dtype, copy=True)

    def own(self, x: Tensor) -> Tensor:  # this rank's rows, as a view
        return x.split(self.sizes, index(self.dim) % x.ndim)[dist.get_rank(self.group)]
