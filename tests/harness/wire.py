# SPDX-License-Identifier: MIT
"""Answers as bytes. Tensors travel as their own bytes: torch's pickling knows no fp8."""

import io
import pickle
from typing import Any

import torch
from torch import Tensor


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        plain = obj.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        flat = plain.view(-1).view(torch.uint8)
        return _rebuild, (bytes(flat.tolist()), obj.dtype, tuple(obj.shape))


def _rebuild(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape) if data else torch.empty(shape, dtype=dtype)


def dumps(value: Any) -> bytes:
    """Any value with tensors in it, as bytes for `pickle.loads`."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()
