# SPDX-License-Identifier: MIT
"""What each rank puts in: the numbers from which one process computes what every rank should see.

Every value depends on its rank and its place, every upstream gradient on the rank that holds it and its place:
constants would hide a wrong order, slice, scale or sum. All are small whole numbers, so that sums over eight ranks are
exact in every dtype, whatever their order, and results are compared bit for bit.
"""

from collections.abc import Sequence
from itertools import combinations, product
from random import Random
from typing import Any

import torch
from torch import Tensor


def values(rank: int, shape: Sequence[int], dtype: str) -> Tensor:
    """A rank's input: whole numbers below 97."""
    return numbers(31 * rank + 5, 7, 97, shape, dtype)


def upstream(rank: int, shape: Sequence[int], dtype: str) -> Tensor:
    """The gradient that arrives at a rank's gathered tensor: whole numbers from -3 to 3."""
    return numbers(5 * rank + 1, 3, 7, shape, dtype, shift=3)


def numbers(start: int, step: int, modulus: int, shape: Sequence[int], dtype: str, shift: int = 0) -> Tensor:
    """`(start + i * step) % modulus - shift` at place i, in any dtype."""
    whole = (torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * step + start) % modulus - shift
    kind: torch.dtype = getattr(torch, dtype)
    if kind == torch.bool:
        return (whole % 3 == 0).view(tuple(shape))
    if kind.is_complex:
        return torch.complex(whole, whole.flip(0) - 1).to(kind).view(tuple(shape))
    if kind.is_floating_point and torch.finfo(kind).bits == 8:
        whole = whole % 15  # e4m3 holds whole numbers up to 16
    return whole.view(tuple(shape)).to(kind)


def covering(axes: Sequence[Sequence[Any]], together: int, seed: int | str = 0) -> list[tuple[Any, ...]]:
    """A choice from each axis, many times, so that any two, or three, options that can meet do meet somewhere.

    Far fewer than the full product, the same in every run, and others with another seed.
    """
    everything = list(product(*(range(len(axis)) for axis in axes)))
    Random(seed).shuffle(everything)
    met: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    chosen = []
    for choice in everything:
        here = {(at, tuple(choice[i] for i in at)) for at in combinations(range(len(axes)), together)}
        if not here <= met:
            met |= here
            chosen.append(choice)
    return [tuple(axis[i] for axis, i in zip(axes, choice, strict=True)) for choice in sorted(chosen)]
