# SPDX-License-Identifier: MIT
"""What each rank puts in: the numbers from which one process computes what every rank should see.

Every value depends on its rank and its place, every upstream gradient on the rank that holds it and its place:
constants would hide a wrong order, slice, scale or sum. All are small whole numbers, so that sums over eight ranks are
exact in every dtype, whatever their order, and results are compared bit for bit.
"""

from collections.abc import Sequence

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
