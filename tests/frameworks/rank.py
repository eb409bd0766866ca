# SPDX-License-Identifier: MIT
"""One rank under torchrun: runs every code block of a page, and saves what came out.

    torchrun --standalone --nproc-per-node 2 rank.py PAGE FOLDER

The page finds `towers`, a model that embeds rows twice, `texts`, the same for sentences, and `loader`, this rank's
batches: ragged, and not equally many on each rank.
"""

import os
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

DOCS = Path(__file__).parents[2] / "shared/distributed/docs"
# rows of each step by rank; the last steps find ranks without a batch
STEPS = {2: [(3, 1), (4, 2), (2, 0)], 3: [(3, 1, 4), (4, 2, 0), (2, 0, 0)]}
COLUMNS, CLASSES = 6, 3
OWN_GROUP = ("accelerate", "lightning", "transformers")  # these make the process group themselves


class Towers(nn.Module):
    """Two embeddings of each row: `(rows, COLUMNS) -> (rows, 4), (rows, 4)`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.left, self.right = nn.Linear(COLUMNS, 4), nn.Linear(COLUMNS, 4)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(rows).tanh(), self.right(rows).tanh()


def rows_of(step: int, rank: int, size: int) -> Tensor:
    """A rank's rows at a step: no two alike."""
    return torch.randn(size, COLUMNS, generator=torch.Generator().manual_seed(10 * step + rank))


def classes_of(rows: Tensor) -> Tensor:
    """The class of each row, for losses with labels."""
    return (rows[:, 0] * 100).long() % CLASSES


def batches_of(rank: int, world: int) -> list[Tensor]:
    """A rank's batches; none of 0 rows."""
    return [rows_of(i, rank, sizes[rank]) for i, sizes in enumerate(STEPS[world]) if sizes[rank]]


def main(page: str, folder: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if page not in OWN_GROUP:
        dist.init_process_group("gloo")
    towers = Towers()
    names = {"__name__": "page", "towers": towers, "loader": batches_of(rank, world), "classes_of": classes_of}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL):
        exec(compile(block, page, "exec"), names)
    torch.save(
        names.get("result", {k: v.detach() for k, v in towers.state_dict().items()}), Path(folder) / f"{rank}.pt"
    )
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
