# SPDX-License-Identifier: MIT
"""What a rank observed, as plain data that can be sent, compared bit for bit, and put in words."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

_LONG = 90  # characters of a value in a report


class TensorData(NamedTuple):
    """A tensor's dtype, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def tensor(self) -> Tensor:
        """The tensor, made again."""
        dtype = getattr(torch, self.dtype)
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.data), dtype=dtype).view(self.shape)


class Raised(NamedTuple):
    """An exception. `bases` are the names of its class and of all that this one is made from."""

    step: str  # what was being done
    bases: tuple[str, ...]
    message: str

    @property
    def name(self) -> str:
        """Its class."""
        return self.bases[0]


class Observation(NamedTuple):
    """What one rank observed of one case: named parts, up to where something was raised."""

    parts: Mapping[str, Any]
    raised: Raised | None = None
    not_defined: tuple[str, ...] = ()  # names used that the file does not define: without us, a NameError


class Outcome(NamedTuple):
    """What all ranks observed. `broken`: how the ranks ended where not all of them answered."""

    by_rank: tuple[Observation | None, ...]
    broken: str = ""


def as_data(value: object) -> Any:
    """A value without torch in it; containers keep their type's name, so that a list is no tuple."""
    if isinstance(value, Tensor):
        plain = value.detach().contiguous().reshape(-1)
        data = bytes(plain.view(torch.uint8).tolist())
        return TensorData(str(value.dtype).removeprefix("torch."), tuple(value.shape), data)
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(as_data, value))
    if value is None or isinstance(value, bool | int | float | str):
        return type(value).__name__, value
    return type(value).__name__, "…"


def in_words(value: Any) -> str:
    """A value for a report, on one line; None for a part that was not given."""
    if value is None:
        return "not given"
    if isinstance(value, TensorData):
        text = f"{value.dtype} tensor {value.shape} {value.tensor().tolist()}"
    elif isinstance(value[1], tuple):
        text = f"{value[0]} of {', '.join(map(in_words, value[1])) or 'nothing'}"
    else:
        text = str(value[1]) if value[0] in ("NoneType", "str") else f"{value[0]} {value[1]}"
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"


def pair_in_words(old: Any, new: Any) -> tuple[str, str]:
    """Two values that differ. Of two tensors of one shape, the first place at which they do."""
    if not (isinstance(old, TensorData) and isinstance(new, TensorData) and old[:2] == new[:2]):
        return in_words(old), in_words(new)
    was, now = old.tensor().view(-1), new.tensor().view(-1)
    differing = next(at for at, (a, b) in enumerate(zip(old.data, new.data, strict=True)) if a != b)
    flat = differing // was.element_size()
    where = f"{old.dtype} tensor {old.shape}, number {flat} of {was.numel()}"
    return f"{where}: {was[flat].item()}", f"{where}: {now[flat].item()}"
