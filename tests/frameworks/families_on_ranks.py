# SPDX-License-Identifier: MIT
"""Train every family on ragged rows under torchrun, and in one process: prints how far the weights are apart.

torchrun --standalone --nproc-per-node 2 -m tests.frameworks.families_on_ranks
"""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from shared_distributed import all_gather, allow_no_rows, until_all_done
from tests.frameworks.families import FAMILIES, inputs_of, model_of

# rows of each step by rank; the last rank of three has no batch at all, and the second one less than the first
STEPS = {2: [(3, 1), (2, 0)], 3: [(3, 1, 0), (2, 0, 0)]}


def embeddings(output: Any) -> tuple[Tensor, Tensor]:
    """Two embeddings per row, `(n, d)` each."""
    if "image_embeds" in output:
        return output.image_embeds, output.text_embeds
    embedding = normalize(output.last_hidden_state.flatten(1))
    return embedding, embedding


def without_batch_statistics(model: nn.Module) -> nn.Module:
    """BatchNorm with its running statistics: those of a batch differ between one process and several."""
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.eval()
    return model


def train_on_ranks(model: nn.Module, family: str, rank: int, world: int) -> None:
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    group = dist.new_group()  # with find_unused_parameters DDP and the gather need a group each
    batches = [
        inputs_of(family, sizes[rank], 10 * step + rank) for step, sizes in enumerate(STEPS[world]) if sizes[rank]
    ]
    for batch in until_all_done(batches, empty=lambda: inputs_of(family, 0)):
        left, right = embeddings(wrapped(**batch))
        everyones, sizes = all_gather(right, group=group)
        labels = torch.arange(len(left)) + sizes.start
        loss = cross_entropy(5 * left @ everyones.T, labels, reduction="sum") * sizes.ddp_scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_alone(model: nn.Module, family: str, world: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, sizes in enumerate(STEPS[world]):
        parts = [inputs_of(family, size, 10 * step + rank) for rank, size in enumerate(sizes) if size]
        left, right = embeddings(model(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]}))
        optimizer.zero_grad()
        cross_entropy(5 * left @ right.T, torch.arange(len(left))).backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for family in FAMILIES:
        fresh = without_batch_statistics(model_of(family).double())
        ours, alone = allow_no_rows(copy.deepcopy(fresh)), copy.deepcopy(fresh)
        torch.set_default_dtype(torch.float64)
        train_on_ranks(ours, family, rank, world)
        if rank == 0:
            train_alone(alone, family, world)
            found, expected, start = [parameters_to_vector(model.parameters()) for model in (ours, alone, fresh)]
            print(
                f"{family}: {(found - expected).norm() / (expected - start).norm():.0e} of what training changed",
                flush=True,
            )
        torch.set_default_dtype(torch.float32)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
