# SPDX-License-Identifier: MIT
"""Batches of 0 rows, made from real ones."""

from typing import Any

from torch import Tensor

from ._nested import is_texts, leaves_of, map_leaves

_ALIKE = (str, bytes, int, float, complex, type(None))  # what a batch of 0 rows has as any other


def cut_to_no_rows(batch: Any) -> Any:
    """A copy of a batch with 0 rows: of its tensors, its arrays and its lists of one string per row.

    Single numbers and strings stay. Raises TypeError for other objects, and where nothing has rows.
    """
    leaves = [leaf for _, leaf in leaves_of(batch)]
    rows = [len(leaf) for leaf in leaves if _has_rows(leaf)]
    if not rows and not any(map(is_texts, leaves)):
        raise TypeError(f"nothing in this {type(batch).__name__} has rows to cut")

    def cut(place: str, leaf: Any) -> Any:
        if _has_rows(leaf):
            return _copy_of_no_rows(leaf)
        if is_texts(leaf):
            is_per_row = not rows or len(leaf) in rows
            return leaf[:0] if is_per_row else leaf
        if isinstance(leaf, (*_ALIKE, Tensor)) or type(leaf).__module__ == "numpy":
            return leaf
        raise TypeError(f"cannot cut {place or 'a batch'} of {type(leaf)} to 0 rows")

    return map_leaves(cut, batch)


def _copy_of_no_rows(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach()[:0].clone()
    return leaf[:0].copy()


def _has_rows(leaf: Any) -> bool:
    """Whether this is a tensor or a NumPy array with at least one dim."""
    is_array = type(leaf).__module__ == "numpy" and hasattr(leaf, "shape")
    return (isinstance(leaf, Tensor) or is_array) and len(leaf.shape) > 0
