# SPDX-License-Identifier: MIT
"""Names that old files use and do not define, with their obvious meaning; and a note of who was asked for."""

import pkgutil
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def exists(val: object) -> bool:
    """Whether it is not None."""
    return val is not None


def default(val: Any, d: Any) -> Any:
    """`d` in place of None."""
    return val if exists(val) else d


def divisible_by(num: int, den: int) -> bool:
    """Whether nothing is left over."""
    return num % den == 0


def pad_dim_to(t: Tensor, length: int, dim: int = 0) -> Tensor:
    """Zeros at the end of `dim`, or a shorter `dim`: `(… n …) -> (… length …)`."""
    after = t.ndim - 1 - dim % t.ndim
    return functional.pad(t, [0] * (2 * after) + [0, length - t.shape[dim]])


def has_only_one_value(t: Tensor) -> Tensor:
    """Whether all elements equal the first."""
    return torch.all(t == t[0])


# what projects keep in a module of their own, and import from there
HELPERS = ("exists", "default", "divisible_by", "pad_dim_to", "has_only_one_value")

_MEANINGS = {
    **{name: f"{__name__}:{name}" for name in HELPERS},
    "F": "torch.nn.functional",
    "nn": "torch.nn",
    "torch": "torch",
    "dist": "torch.distributed",
    "distributed": "torch.distributed",
    "Function": "torch.autograd:Function",
    "Tensor": "torch:Tensor",
    "rearrange": "einops:rearrange",
    "repeat": "einops:repeat",
    "reduce": "einops:reduce",
    "pack": "einops:pack",
    "unpack": "einops:unpack",
    "cache": "functools:cache",
    "lru_cache": "functools:lru_cache",
    "partial": "functools:partial",
    "wraps": "functools:wraps",
}


class Supply:
    """Gives names a meaning, and remembers which of them were used since `forget`."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self._always: set[str] = set()

    def knows(self, name: str) -> bool:
        """Whether the name has an obvious meaning."""
        return name in _MEANINGS

    def get(self, name: str, *, noted: bool = True) -> Any:
        """What the name means. Its uses are noted, unless the file does import it and only its source is away."""
        value = pkgutil.resolve_name(_MEANINGS[name])
        if not noted:
            return value
        if isinstance(value, type):  # is inherited from, or asked about: something that stands for it would not do
            self._always.add(name)
            return value
        return _Noted(name, value, self.used)

    def keep(self) -> None:
        """What was used so far, at import, is used in every case."""
        self._always |= self.used

    def forget(self) -> None:
        """Begin a new case."""
        self.used.clear()

    def names(self) -> tuple[str, ...]:
        """What was used in this case."""
        return tuple(sorted(self._always | self.used))


class _Noted:
    """A function or module, with a note of every use."""

    def __init__(self, name: str, value: Any, used: set[str]) -> None:
        self._name, self._value, self._used = name, value, used

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._used.add(self._name)
        return self._value(*args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        self._used.add(self._name)
        return getattr(self._value, attribute)
