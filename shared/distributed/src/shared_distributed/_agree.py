# SPDX-License-Identifier: MIT
"""Agree: what every rank must know before any rows are sent."""

import os
from hashlib import blake2b
from operator import index
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from ._errors import BadInputError, DisagreementError
from ._ranks import _Ranks


def _agree(operation: str, x: Any, dim: int, sizes: Any, summed: bool = False) -> tuple[Any, ...]:
    """The ranks, the tensor to gather, its dim counted from the front, and every rank's size along it.

    If anything is wrong on any rank, every rank raises the same error.
    """
    ranks = _Ranks(x)
    if _are_trusted(sizes):
        dim, sizes = _check(ranks, operation, x, dim, sizes)
        return ranks, x, dim, sizes
    claim, words = _claim(ranks, operation, x, dim, sizes, summed)
    claims = _compare(ranks, claim, words)
    if summed and any(each.wants_gradient for each in claims):
        if not all(each.wants_gradient or each.can_join for each in claims):
            _raise_on_all(ranks, DisagreementError, _CANNOT_JOIN, words)
        if not x.requires_grad:
            x = x.clone().requires_grad_()  # else this rank would miss the summed backward that the others enter
    return ranks, x, index(dim) % x.ndim, [each.size for each in claims]


def _are_trusted(sizes: Any) -> bool:
    """Whether sizes are used without asking the other ranks. Wrong ones can then hang or abort them."""
    return sizes is not None and os.environ.get("SHARED_DISTRIBUTED_CHECK", "0") == "0"


class _Claim(NamedTuple):
    """What a rank tells the others about its call."""

    digest: int  # of everything that must be equal on all ranks; 0 if this rank's arguments cannot be used
    size: int  # along dim
    wants_gradient: int
    can_join: int  # whether it can take part in a backward that only other ranks want


def _claim(ranks: Any, operation: str, x: Any, dim: int, sizes: Any, summed: bool) -> tuple[_Claim, str]:
    """This rank's call in four numbers, and in words: these are exchanged only if something is wrong."""
    grad_enabled = torch.is_grad_enabled()
    try:
        dim, sizes = _check(ranks, operation, x, dim, sizes)
    except BadInputError as error:
        return _Claim(0, 0, 0, grad_enabled), str(error)
    shape = list(x.shape)
    shape[dim] = "*"
    must_be_equal = [
        f"operation {operation}",
        f"shape {shape}",
        f"dtype {x.dtype}",
        f"device {x.device.type}",
        f"dim {dim}",
        f"sizes {sizes}",
        f"summed gradient {summed}",
    ]
    encoded = "; ".join(must_be_equal).encode()
    digest = blake2b(encoded, digest_size=8).digest()  # hash() would differ between processes
    number = int.from_bytes(digest, "big", signed=True)
    claim = _Claim(number, x.shape[dim], x.requires_grad and grad_enabled, grad_enabled)
    rank = f"rank {ranks.rank} of {ranks.world} has {tuple(x.shape)}, requires_grad {x.requires_grad}, {grad_enabled=}"
    return claim, "; ".join([rank, *must_be_equal])


def _check(ranks: Any, operation: str, x: Any, dim: int, sizes: Any) -> tuple[int, Any]:
    """`dim` counted from the front, and `sizes` as ints. BadInputError for what this rank finds wrong by itself."""
    try:
        _check_tensor(x, ranks.backends)
        size = x.size(index(dim))  # torch's own error where dim is out of range
        if sizes is not None:
            numbers = sizes.tolist() if isinstance(sizes, Tensor) else sizes
            sizes = tuple(index(number) for number in numbers)
            if len(sizes) != ranks.world or min(sizes) < 0 or sizes[ranks.rank] != size:
                raise ValueError(f"{sizes=} for {ranks.world} ranks, but rank {ranks.rank} has {size}")
        return index(dim) % x.ndim, sizes
    except Exception as error:
        what = f"{tuple(x.shape)} {x.dtype} on {x.device}" if _has_shape(x) else type(x)
        call = f"rank {ranks.rank} of {ranks.world}: {operation} of {what}, dim {dim!a}"
        raise BadInputError(f"{call}: {error}") from error


def _check_tensor(x: Any, backends: dict[str, str]) -> None:
    """Raise for what cannot be sent as bytes."""
    is_dense = _has_shape(x) and x.layout == torch.strided and not x.is_quantized and not hasattr(x, "to_local")
    if not is_dense or x.device.type not in backends:
        raise TypeError(f"expected a dense torch.tensor on {' or '.join(backends)}, and not a DTensor")


def _has_shape(x: Any) -> bool:
    """Whether `x` is a tensor with a shape. Nested tensors and lazy parameters have none."""
    return isinstance(x, Tensor) and not x.is_nested and not hasattr(x, "materialize")


_CANNOT_JOIN = "some ranks want a summed gradient, and others, under no_grad or compiled, cannot take part in it"


def _compare(ranks: Any, claim: _Claim, words: str) -> list[_Claim]:
    """Every rank's claim; the same error on every rank if they do not fit together."""
    claims = [_Claim(*numbers) for numbers in ranks.exchange(claim)]
    unusable = [rank for rank, each in enumerate(claims) if each.digest == 0]
    if unusable:
        _raise_on_all(ranks, BadInputError, f"the arguments of ranks {unusable} cannot be used", words)
    if len({each.digest for each in claims}) > 1:
        _raise_on_all(ranks, DisagreementError, "the ranks' calls do not fit together", words)
    return claims


def _raise_on_all(ranks: Any, kind: type[Exception], problem: str, words: str) -> NoReturn:
    """The same error on every rank, with the words of all."""
    calls = ranks.exchange_words(words)
    parts_of_each = [call.split("; ")[1:] for call in calls]
    for parts in zip(*parts_of_each, strict=False):
        if len(set(parts)) > 1:
            problem += f"; {parts[0].split()[0]} differs"
    advice = "Ranks may differ only in their size along dim. Nothing was sent, and the process group can still be used."
    raise kind("\n  ".join([f"{problem}:", *calls]) + f"\n{advice}")
