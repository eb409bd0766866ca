# SPDX-License-Identifier: MIT
"""One rank under torchrun: runs every code block of a page, and saves what came out.

    torchrun --standalone --nproc-per-node 2 rank.py PAGE FOLDER

The page finds `towers`, a model that embeds rows twice; `loader`, this rank's batches, ragged and not equally many on
each rank; `dataset`, the rows of all ranks; and `classes_of(rows)`. For sentences `encoder` and `pairs`.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# rows of each step by rank; the last steps find ranks without a batch
STEPS = {2: [(3, 1), (4, 2), (2, 0)], 3: [(3, 1, 4), (4, 2, 0), (2, 0, 0)]}
COLUMNS, CLASSES = 6, 3
OWN_GROUP = (
    "accelerate",
    "lightning",
    "sentence-transformers",
    "transformers",
)  # these make the process group themselves


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


DATASET = rows_of(99, 0, 9)  # in batches of two: the last has one row, and some ranks get none


def classes_of(rows: Tensor) -> Tensor:
    """The class of each row, for losses with labels."""
    return (rows[:, 0] * 100).long() % CLASSES


def batches_of(rank: int, world: int) -> list[Tensor]:
    """A rank's batches; none of 0 rows."""
    return [rows_of(i, rank, sizes[rank]) for i, sizes in enumerate(STEPS[world]) if sizes[rank]]


WORDS = ["red", "green", "blue", "round", "square", "small", "large", "old", "new"]


def sentence_encoder() -> Any:
    """A sentence model made on the spot: nothing is downloaded."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    tokenizer.pre_tokenizer = Whitespace()
    torch.manual_seed(7)
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")


def sentence_pairs() -> dict[str, list[str]]:
    """A query and a document for each row of the dataset."""
    queries = [f"{WORDS[i]} {WORDS[(i + 3) % 9]}" for i in range(len(DATASET))]
    return {"query": queries, "document": [f"{WORDS[(2 * i + 1) % 9]} {WORDS[i]} new" for i in range(len(DATASET))]}


def main(file: str, folder: str) -> None:
    """Run the page in `file`; the weights, or what the page calls its `result`, go into `folder`."""
    page = Path(file).stem
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if page not in OWN_GROUP:
        dist.init_process_group("gloo")
    towers = Towers()
    names: dict[str, Any] = {"__name__": "page", "towers": towers, "loader": batches_of(rank, world)}
    names |= {"dataset": DATASET, "classes_of": classes_of}
    if page == "sentence-transformers":
        from datasets import Dataset

        names |= {"encoder": sentence_encoder(), "pairs": Dataset.from_dict(sentence_pairs())}
    for block in re.findall(r"```python\n(.*?)```", Path(file).read_text(), re.DOTALL):
        exec(compile(block, page, "exec"), names)
    torch.save(
        names.get("result", {k: v.detach() for k, v in towers.state_dict().items()}), Path(folder) / f"{rank}.pt"
    )
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
