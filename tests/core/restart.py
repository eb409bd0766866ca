# SPDX-License-Identifier: MIT
"""A small training run that saves its state and goes on from it. torchrun starts this file; the harness, `train`."""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from shared_distributed import all_gather
from tests.support.oracle import values

STEPS, EVERY = 10, 3  # how long the run is, and after how many steps it saves its state
LOST_RANK, LOST_AT = 1, 7


def sizes_at(step: int, world: int) -> list[int]:
    """Each rank's rows: others at every step, none on one rank now and then."""
    return [(5 * rank + 3 * step) % 4 for rank in range(world)]


def loss_at(step: int, model: nn.Module) -> torch.Tensor:
    """Every row against all rows of all ranks: each should be most like itself."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = values(rank + step, (sizes_at(step, world)[rank], 6), "float32") / 97
    embedded = model(rows)
    everyones, sizes = all_gather(embedded)
    labels = torch.arange(len(rows)) + sizes.start
    return nn.functional.cross_entropy(embedded @ everyones.T, labels, reduction="sum") / sum(sizes)


def train(folder: str, lose_a_rank: bool = False) -> list[float]:
    """This rank's losses, by step, from the last saved state on; the first life may lose a rank."""
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    state: dict[str, Any] = {"weights": weights, "velocity": weights * 0, "losses": [[]] * world}
    checkpoint = Path(folder) / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
    weights, velocity, losses = state["weights"], state["velocity"], list(state["losses"][rank])
    for step in range(len(losses), STEPS):
        vector_to_parameters(weights, parameters)
        loss = loss_at(step, model)
        if lose_a_rank and (rank, step) == (LOST_RANK, LOST_AT):
            os.kill(os.getpid(), signal.SIGKILL)  # the others are on their way into the summed backward
        gradient = parameters_to_vector(torch.autograd.grad(loss, parameters))
        dist.all_reduce(gradient)
        velocity = 0.9 * velocity + gradient / world
        weights = weights - 0.5 * velocity
        losses.append(loss.item())
        if (step + 1) % EVERY == 0:
            everyones: list[Any] = [None] * world
            dist.all_gather_object(everyones, losses)
            if rank == 0:
                save({"weights": weights, "velocity": velocity, "losses": everyones}, checkpoint)
            dist.barrier()  # nobody runs ahead of a state that is not there yet
    return losses


def save(state: dict[str, Any], path: Path) -> None:
    """All of it or nothing: a rank may be lost at any moment."""
    half = path.with_suffix(".half")
    torch.save(state, half)
    half.replace(path)


def main(folder: str) -> None:
    """One life of one rank under torchrun: what it did is noted in the folder."""
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    note = Path(folder) / f"life-{life}-rank-{dist.get_rank()}.json"
    note.write_text("[]")
    note.write_text(json.dumps(train(folder, lose_a_rank=life == 0)))
    os._exit(0)  # torch 2.0 may hang where it ends the group: it holds the lock that the group's thread waits for


if __name__ == "__main__":
    main(sys.argv[1])
