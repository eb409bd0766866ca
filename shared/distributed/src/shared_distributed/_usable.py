# SPDX-License-Identifier: MIT
"""Which tensors cannot be gathered, of those that the heart accepts; which of them are memory and nothing more."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ._agree import _has_shape
from ._blocks import dtype_of_sums
from ._errors import BadInputError


def problem_with(x: Any) -> str:
    """What the package finds wrong with a tensor that the heart accepts."""
    if not _has_shape(x) or x.layout != torch.strided:
        return ""  # the heart says it
    if isinstance(x, FakeTensor):
        return "a fake tensor has no rows"
    functorch = torch._C._functorch
    try:
        tracked = functorch.is_gradtrackingtensor(x) and x.requires_grad
        if tracked or functorch.is_batchedtensor(x) or forward_ad.unpack_dual(x).tangent is not None:
            return "torch.func and forward mode do not go through a gather: use torch.autograd.grad"
        _copy_one(x.dtype)
        if is_plain(x):
            if x.untyped_storage().nbytes() == 0 and x.numel() > 0:
                return "its memory was freed"
        else:
            x.new_empty(0).copy_(x.detach().flatten().narrow(0, 0, 0))  # raises for what cannot be gathered
    except Exception as error:
        return str(error)
    return ""


def refuse_tracing() -> None:
    """Raise where operations are recorded instead of run. No exchange would reach the other ranks from there."""
    modes = _get_current_dispatch_mode_stack()
    if torch.jit.is_tracing() or any(isinstance(mode, (FakeTensorMode, ProxyTorchDispatchMode)) for mode in modes):
        raise BadInputError("make_fx, aot_function and torch.jit.trace cannot record a gather: use torch.compile")


# of `is_grads_batched`; torch 2.0 has no way to ask
_is_legacy_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda x: False)


def refuse_batched(x: Tensor) -> None:
    """Raise for the gradient of several backwards at once: no collective knows of them."""
    if torch._C._functorch.is_batchedtensor(x) or _is_legacy_batched(x):
        raise BadInputError("a summed gradient cannot be batched: call torch.autograd.grad without is_grads_batched")


@cache
def problem_of_sum(dtype: torch.dtype) -> str:
    """Why numbers of a dtype cannot be added; empty if they can."""
    try:
        number = torch.empty(1, dtype=dtype, device="cpu")
        if not dtype.is_complex:
            number.to(dtype_of_sums(dtype)).to(dtype)
    except Exception as error:
        return f"{dtype} cannot be added: {error}"
    return ""


@cache
def _copy_one(dtype: torch.dtype) -> None:
    """Torch's error for a dtype that it cannot copy, such as uint4."""
    torch.empty(1, dtype=dtype, device="cpu").copy_(torch.empty(1, dtype=dtype, device="cpu"))


def is_plain(x: Any) -> bool:
    """Whether a tensor is memory and nothing more: no subclass, and not wrapped by a transform of torch's."""
    return type(x) in (Tensor, Parameter) and torch._C._functorch.peek_interpreter_stack() is None
