# SPDX-License-Identifier: MIT
"""Models that cannot take 0 rows: they run on stand-in rows instead, and what they return is cut to 0 rows."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ._nested import leaves_of, map_leaves
from ._ranks import _is_compiling

M = TypeVar("M", bound=nn.Module)
_ROWS = 2  # not 1: with one row `squeeze` would drop a dimension, and a standard deviation would be NaN


def allow_no_rows(model: M) -> M:
    """Let `model` take batches of 0 rows, as `until_all_done` makes them. Returns the model itself.

        model(batch of n rows)  ->  as before
        model(batch of 0 rows)  ->  runs on stand-in rows; every tensor that it returns is cut to 0 rows

    Most transformers raise for 0 rows. With this they run, their parameters get gradients of zero, and they join in the
    communication of DDP and FSDP as on the other ranks. A batch has 0 rows if the first tensor among the arguments has
    0 rows; arguments and results may be nested. The stand-in rows are rows of an earlier batch, else ones and small
    numbers. A tensor of one element in the result, such as the model's own loss, cannot be cut: it is multiplied by 0.
    BatchNorm does not count the stand-in rows in its statistics. A model with SyncBatchNorm in training gets the 0 rows
    themselves, because the other ranks wait for that layer, and it takes them.

    Use it before or after wrapping in DDP, FSDP or `torch.compile`. It adds two forward hooks and no parameter.

    >>> model = allow_no_rows(torch.nn.Linear(3, 2))
    >>> model(torch.ones(0, 3)).shape
    torch.Size([0, 2])
    """
    stand_in = _StandIn()
    model.register_forward_pre_hook(stand_in.fill, with_kwargs=True)
    model.register_forward_hook(stand_in.cut)
    return model


class _StandIn:
    """The two hooks of a model, and what they remember."""

    def __init__(self) -> None:
        self.earlier: dict[str, Tensor] = {}  # rows of an earlier batch, by their place among the arguments
        self.is_used = False  # in the forward that is running, or was the last
        self.paused: list[nn.Module] = []  # layers that must not count the stand-in rows

    def fill(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """Before the forward: stand-in rows instead of none."""
        self._resume()  # if the last forward raised
        self.is_used = _has_no_rows((args, kwargs)) and not _synchronises(model)
        if not self.is_used:
            self._remember((args, kwargs))
            return None
        self._pause(model)
        return map_leaves(self._rows_for, (args, kwargs))

    def cut(self, model: nn.Module, args: Any, output: Any) -> Any:
        """After the forward: 0 rows instead of the stand-in rows."""
        if not self.is_used:
            return None
        self._resume()
        return map_leaves(_no_rows_of, output)

    def _remember(self, arguments: Any) -> None:
        for place, value in leaves_of(arguments):
            if not _has_dims(value) or len(value) == 0 or _is_compiling():
                continue
            known = self.earlier.get(place)
            form = (value.shape[1:], value.dtype)
            if known is None or (known.shape[1:], known.dtype) != form:
                self.earlier[place] = value.detach()[:_ROWS].clone()

    def _rows_for(self, place: str, value: Any) -> Any:
        """The stand-in rows for one tensor of 0 rows; anything else stays as it is."""
        if not _has_dims(value) or len(value) > 0:
            return value
        known = self.earlier.get(place)
        if known is not None and known.ndim == value.ndim:
            known = known.to(value)
            rows = torch.cat([known, known])[:_ROWS]
        else:
            rows = _made_up_rows(value)
        if value.requires_grad:
            rows = rows + value.sum()  # adds 0, so that what made the value gets its gradient of zero
        return rows

    def _pause(self, model: nn.Module) -> None:
        for layer in model.modules():
            if isinstance(layer, _NormBase) and layer.training and layer.track_running_stats:
                layer.training = False
                self.paused.append(layer)

    def _resume(self) -> None:
        for layer in self.paused:
            layer.training = True
        self.paused = []


def _has_no_rows(arguments: Any) -> bool:
    """Whether the first tensor with dimensions has 0 rows."""
    for _, value in leaves_of(arguments):
        if _has_dims(value):
            return len(value) == 0
    return False


def _synchronises(model: nn.Module) -> bool:
    return any(isinstance(layer, nn.SyncBatchNorm) and layer.training for layer in model.modules())


def _has_dims(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_nested and value.ndim > 0


def _made_up_rows(value: Tensor) -> Tensor:
    """Valid for most models: ones as token ids and masks, and numbers that are not all equal."""
    shape = [max(size, 1) for size in value.shape]
    shape[0] = _ROWS
    if not value.is_floating_point() and not value.is_complex():
        return torch.ones(shape, dtype=value.dtype, device=value.device)
    count = torch.Size(shape).numel()
    numbers = torch.linspace(0.1, 1.0, count, device=value.device)
    return numbers.reshape(shape).to(value.dtype)


def _no_rows_of(place: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.numel() == 1:
        return value * 0
    return value[:0].clone()  # not a view: FSDP warns of views
