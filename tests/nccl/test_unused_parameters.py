# SPDX-License-Identifier: MIT
"""DDP with `find_unused_parameters`, where ranks use different parameters: which of its ways work on NCCL.

DDP starts the sum of a bucket as soon as all of its gradients are there. A rank that leaves a layer out has some of
them earlier than the others: before the backward of the gather, which comes first on the others. So the gather needs a
group of its own. On the backend that is called "nccl" since torch 2.15, the stream that starts DDP's sum waits for it.
What that stream does next, such as the backward of the gather, then waits for ranks that wait for this rank. So there
the gather needs a stream of its own too: autograd runs the backward on the stream of the forward.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import shared_distributed as core
from tests.emulated.calls import settings
from tests.house.pages import names_of
from tests.support import World
from tests.support.oracle import values
from tests.support.world import device, join_group

WORLD = 2
STEPS = 3
SMALL_BUCKETS, ONE_BUCKET = 1e-6, 25.0  # MiB: a parameter each, and all together

# ------------------------------------------------------------------ on ranks


class Scorer(nn.Module):
    """A layer that only rank 0 uses, before a gather, and a layer after it."""

    def __init__(self, group: Any, side: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.encode, self.detour, self.score = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)
        self.group, self.side = group, side

    def encoded(self, rows: Tensor, uses_detour: bool) -> Tensor:
        encoded: Tensor = self.encode(rows)
        return encoded + self.detour(rows) if uses_detour else encoded

    def forward(self, rows: Tensor, uses_detour: bool) -> Tensor:
        encoded = self.encoded(rows, uses_detour)
        gathered = self.gather(encoded) if self.side is None else self.gather_on_the_side(encoded)
        scores: Tensor = self.score(gathered)
        return scores

    def gather(self, encoded: Tensor) -> Tensor:
        return core.all_gather(encoded, group=self.group)[0]

    def gather_on_the_side(self, encoded: Tensor) -> Tensor:
        gather = names_of("shared/distributed/docs/promises.md")["gather_on_the_side"]
        gathered: Tensor = gather(encoded, self.group, self.side)[0]
        return gathered


def rows_of(rank: int, step: int) -> Tensor:
    return values(rank + 5 * step, (rank + 2, 3), "float32") / 50


def gradients_of_last_step(own_group: bool, own_stream: bool, bucket: float) -> list[Tensor]:
    settings(patience=8)
    join_group()
    rank = dist.get_rank()
    group = dist.new_group() if own_group else None
    model = Scorer(group, torch.cuda.Stream() if own_stream else None).to(device())
    wrapped = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=bucket)
    for step in range(STEPS):
        wrapped.zero_grad()
        scores = wrapped(rows_of(rank, step).to(device()), rank == 0)
        ((rank + 1) * scores.square().sum()).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def gradients_in_one_process() -> list[Tensor]:
    """Of the mean over ranks of their losses."""
    model = Scorer(None, None)
    encoded = [model.encoded(rows_of(rank, STEPS - 1), rank == 0) for rank in range(WORLD)]
    scores = model.score(torch.cat(encoded))
    sum((rank + 1) * scores.square().sum() / WORLD for rank in range(WORLD)).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize(
    ("name", "own_group", "own_stream", "bucket"),
    [
        ("nccl", True, True, SMALL_BUCKETS),
        ("nccl-legacy", True, True, SMALL_BUCKETS),
        ("nccl-legacy", True, False, SMALL_BUCKETS),
        ("nccl", False, False, ONE_BUCKET),
        ("nccl-legacy", False, False, ONE_BUCKET),
    ],
)
def test_ranks_that_use_different_parameters(
    name: str, own_group: bool, own_stream: bool, bucket: float, backend: str
) -> None:
    """A group and a stream of the gather's own; or one bucket, whose sum begins when all gradients are there."""
    expected = gradients_in_one_process()
    with World(WORLD, name, join=False) as world:
        for found in world.run(gradients_of_last_step, own_group, own_stream, bucket):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
