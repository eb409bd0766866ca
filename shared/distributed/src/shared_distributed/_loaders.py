# SPDX-License-Identifier: MIT
"""Mistakes with loaders that can be seen: rows that every rank reads, and rows that are repeated."""

import warnings
import zlib
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from ._errors import BadInputError
from ._nested import leaves_of

_ENOUGH = 4096  # numbers of a tensor that are compared


def mark_of_rows(loader: Any, batch: Any) -> int:
    """A number for the first batch of a loader that reads its whole dataset; 0 where it may well read a part.

    Only a DataLoader with torch's own samplers surely reads all of it. Equal batches have equal numbers.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return 0
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        return 0
    if type(loader.sampler) not in (RandomSampler, SequentialSampler):
        return 0
    mark = 0
    for place, leaf in leaves_of(batch):
        mark = zlib.crc32(_bytes_of(leaf), zlib.crc32(place.encode(), mark))
    return mark


def warn_of_same_rows(marks: list[int]) -> None:
    """Warn if every rank begins with the same batch of a dataset that nobody has divided."""
    if marks[0] and len(set(marks)) == 1:
        text = f"all {len(marks)} ranks begin with the same batch of the same dataset: it is not divided between them."
        advice = "Give each rank its own rows, with a sampler, a Subset, or the loader that your framework prepares."
        warnings.warn(f"{text} {advice}", UserWarning, stacklevel=3)


def refuse_repeated_rows(loader: Any) -> None:
    """Raise for the loaders of accelerate that repeat rows whatever their settings are. accelerate is not imported."""
    shard = getattr(loader, "dataset", None)
    pads = type(shard).__name__ == "IterableDatasetShard" and not getattr(shard, "drop_last", False)
    if pads or type(loader).__name__ == "DataLoaderDispatcher":
        text = (
            "accelerate repeats rows of an IterableDataset, and with dispatch_batches=True, to give ranks equally many"
        )
        raise BadInputError(f"{text}. Divide the rows between the ranks yourself, and do not prepare this loader.")


def _bytes_of(leaf: Any) -> bytes:
    if isinstance(leaf, Tensor):
        numbers = leaf.detach().flatten()[:_ENOUGH]
        return repr((leaf.shape, numbers.tolist())).encode()
    return repr(leaf).encode()
