# SPDX-License-Identifier: MIT
"""Several tensors of one size along dim, agreed on in one exchange."""

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor

from ._agreement import (
    Claim,
    dim_from_front,
    examine,
    exchange_while_compiling,
    settle,
    shape_of_sizes,
    sizes_while_compiling,
)
from ._compile import opaque
from ._sizes import Sizes
from ._world import Group, is_compiling, is_distributed

Keys = Sequence[str] | None

MAX_TENSORS = 61  # a bit each, beside two others, in an int64 of the header


def agree_on_all(
    op: str, xs: Sequence[Tensor], dim: int, sizes: Sizes | None, *, grad: str, group: Group, keys: Keys
) -> tuple[list[Tensor], list[int], tuple[int, ...]]:
    """As `agree`, for several tensors: `keys` are theirs in a dict."""
    if is_compiling():
        fronts = [dim_from_front(dim, x) for x in xs]
        if sizes is None and is_distributed(group):
            wants_grad = sum(x.requires_grad << i for i, x in enumerate(xs)) if torch.is_grad_enabled() else 0
            sizes = _all_sizes_operator([x.detach() for x in xs], op, dim, grad, wants_grad, keys, group)
        return list(xs), fronts, sizes_while_compiling(op, xs[0].shape[fronts[0]], sizes, group)
    claims = [examine(op, x, dim, sizes, grad, group) for x in xs]
    xs, agreed = settle(_join(op, claims, keys), xs, sizes, grad, group)
    return xs, [claim.dim or 0 for claim in claims], agreed


def _join(op: str, claims: list[Claim], keys: Keys) -> Claim:
    """The claim for several tensors: the first one's, with a checksum of them all."""
    if len(claims) == 1 and keys is None:
        return claims[0]
    if not claims:
        return Claim(op, problem="there is no tensor in the container")
    if len(claims) > MAX_TENSORS:
        return Claim(op, problem=f"a container of {len(claims)} tensors, at most {MAX_TENSORS} are supported")
    names = [f"tensor {i}" for i in range(len(claims))] if keys is None else list(map(repr, keys))
    first = claims[0]
    for name, claim in zip(names, claims, strict=True):
        if claim.problem:
            return Claim(op, problem=f"{name}: {claim.problem}")
        if claim.shape[claim.dim or 0] != first.shape[first.dim or 0]:
            sizes = f"{claim.shape[claim.dim or 0]}, {names[0]} has {first.shape[first.dim or 0]}"
            return Claim(op, problem=f"{name} of shape {claim.shape} has size {sizes} along the gathered dim")
    alike = [(c.kind, c.dim, c.shape[: c.dim], c.shape[(c.dim or 0) + 1 :]) for c in claims]
    crc = crc32(repr((keys, alike)).encode())
    kind = first.kind.replace(op, f"{op}({len(claims)}:{crc:08x})", 1)
    several = ", ".join(f"{name} {c.shape} {c.kind.split()[2]}" for name, c in zip(names, claims, strict=True))
    wants_grad = sum(claim.wants_grad << i for i, claim in enumerate(claims))
    return first._replace(kind=kind, wants_grad=wants_grad, several=several)


# ------------------------------------------------------------------ under torch.compile


def _all_agreed_sizes(
    xs: Sequence[Tensor], op: str, dim: int, grad: str, wants_grad: int, keys: Keys, group: Group
) -> Tensor:
    claims = [examine(op, x, dim, None, grad, group) for x in xs]
    return exchange_while_compiling(_join(op, claims, keys), wants_grad, grad, group)


_all_sizes_operator = opaque(
    "all_agreed_sizes",
    "(Tensor[] xs, str op, int dim, str grad, int wants_grad, str[]? keys, str group) -> Tensor",
    _all_agreed_sizes,
    shape_of_sizes,
)
