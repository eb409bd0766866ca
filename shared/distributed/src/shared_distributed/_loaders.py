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


def mark_of_rows(loader: Any) -> int:
    """A number for the whole dataset that this rank's loader reads; 0 where it may well be a part.

    Only a DataLoader with torch's own samplers surely reads its whole dataset. Equal datasets have an equal number.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return 0
    whole = type(loader.batch_sampler) in (BatchSampler, type(None))
    if not whole or type(loader.sampler) not in (RandomSampler, SequentialSampler):
        return 0
    try:
        first_row = loader.dataset[0]
        size = len(loader.dataset)
    except Exception:  # the loop itself will meet it
        return 0
    mark = zlib.crc32(str(size).encode())
    for place, leaf in leaves_of(first_row):
        mark = zlib.crc32(_bytes_of(leaf), zlib.crc32(place.encode(), mark))
    return mark


def warn_of_same_rows(marks: list[int]) -> None:
    """Warn if every rank reads the same dataset from beginning to end."""
    if marks[0] and len(set(marks)) == 1:
        text = (
            f"all {len(marks)} ranks read every row of the same dataset: nothing divides it among them. Give each rank "
            "its own rows, with a sampler, a Subset, or the loader that your framework prepares."
        )
        warnings.warn(text, UserWarning, stacklevel=3)


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
