# SPDX-License-Identifier: MIT
"""Values inside nested containers: batches, and what models take and return."""

import dataclasses
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from torch.nn.utils.rnn import PackedSequence


def map_leaves(function: Callable[[str, Any], Any], value: Any, place: str = "") -> Any:
    """The same containers, with `function(place, leaf)` for every leaf. A place reads like `['ids'][0]`.

    Containers are mappings (`ModelOutput` and `BatchEncoding` too), lists, tuples, namedtuples and dataclasses. They
    are made anew, so that the originals keep their leaves. A list of strings is a leaf.
    """
    if type(value) is dict:  # without a copy, which torch.compile cannot trace
        return {key: map_leaves(function, item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, Mapping):
        filled: Any = copy(value)
        for key, item in value.items():
            filled[key] = map_leaves(function, item, f"{place}[{key!r}]")
        return filled
    if _is_sequence(value):
        items = [map_leaves(function, item, f"{place}[{i}]") for i, item in enumerate(value)]
        if hasattr(value, "_make"):  # a namedtuple
            return value._make(items)
        return type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        filled = copy(value)
        for field in dataclasses.fields(value):
            name = field.name
            item = map_leaves(function, getattr(value, name), f"{place}.{name}")
            object.__setattr__(filled, name, item)  # in a frozen one too
        return filled
    return function(place, value)


def leaves_of(value: Any) -> list[tuple[str, Any]]:
    """Every leaf with its place, in the order of the containers."""
    found: list[tuple[str, Any]] = []
    map_leaves(lambda place, leaf: found.append((place, leaf)), value)
    return found


def is_texts(value: Any) -> bool:
    """Whether this is a list or tuple of strings, as a loader gives one per row."""
    if not isinstance(value, (list, tuple)) or len(value) == 0:
        return False
    return all(isinstance(item, str) for item in value)


def _is_sequence(value: Any) -> bool:
    """Whether this is a list or tuple to go into."""
    if isinstance(value, PackedSequence) or is_texts(value):
        return False
    return isinstance(value, (list, tuple))
