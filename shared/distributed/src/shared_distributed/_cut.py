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
    rows = {leaf.shape[0] for leaf in leaves if _has_rows(leaf)}
    texts = [leaf for leaf in leaves if is_texts(leaf)]
    if not rows and not texts:
        raise TypeError(f"nothing in this {type(batch).__name__} has rows to cut")

    def cut(place: str, leaf: Any) -> Any:
        if _has_rows(leaf):
            no_rows = leaf[:0]
            return no_rows.detach().clone() if isinstance(leaf, Tensor) else no_rows.copy()
        if isinstance(leaf, Tensor) or type(leaf).__module__ == "numpy":
            return leaf
        if is_texts(leaf):
            return leaf[:0] if not rows or len(leaf) in rows else leaf
        if isinstance(leaf, _ALIKE):
            return leaf
        raise TypeError(f"cannot cut {place or 'a batch'} of {type(leaf)} to 0 rows")

    return map_leaves(cut, batch)


def _has_rows(leaf: Any) -> bool:
    """Whether this is a tensor or a NumPy array with at least one dim."""
    is_array = type(leaf).__module__ == "numpy" and hasattr(leaf, "shape")
    return (isinstance(leaf, Tensor) or is_array) and len(leaf.shape) > 0
