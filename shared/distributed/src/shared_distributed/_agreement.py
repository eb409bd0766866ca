# SPDX-License-Identifier: MIT
"""What the ranks agreed on, before any data moves.

Sizes not given: one exchange of a fixed-width header. Every rank then knows every rank's size, and
whatever is wrong anywhere raises the same error everywhere, with the group still usable.

Sizes given: no exchange. A rank checks what it can see alone and raises alone; the others may then
wait until the group's timeout, abort in the transport, or receive unwritten rows. The environment
variable SHARED_DISTRIBUTED_CHECK=1, set on every rank, turns the exchange on for this path too.
"""

import os
import struct
from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from ._compile import opaque
from ._errors import BadInputError, DisagreementError
from ._sizes import Sizes, ints_of
from ._transport import exchange_header
from ._world import Group, backend_by_device, is_compiling, is_distributed, rank_and_world_or_alone

MAX_DIMS = 24

# a header: [flags, dim, ndim, crc of the sizes given, 8 ints of text, then the shape or a problem as text]
_KIND, _BODY = 4, 12
_BAD, _STANDS_IN, _WANTS_GRAD = 1, 2, 2  # bit 0, bit 1, all bits from 2 up
_NO_DIM = -1
_SEVERAL = 128  # ints of text for the tensors of a container


class Claim(NamedTuple):
    """What one rank says about its call. `dim` None: ranks may differ in no dimension at all."""

    kind: str  # operation, gradient, dtype and device, in words
    shape: tuple[int, ...] = ()
    dim: int | None = None
    sizes: tuple[int, ...] | None = None
    wants_grad: int = 0  # a bit for each tensor
    stands_in: bool = True  # takes part in a summed backward for others' sake
    problem: str = ""
    several: str = ""  # the tensors of a container in words, exchanged only where something does not fit

    def header(self) -> list[int]:
        """The claim as a row of int64, equally wide on every rank."""
        flags = _BAD * bool(self.problem) + _STANDS_IN * self.stands_in + (self.wants_grad << _WANTS_GRAD)
        dim = _NO_DIM if self.dim is None else self.dim
        crc = 0 if self.sizes is None else 1 + crc32(repr(self.sizes).encode())
        shape = (*self.shape, *[0] * (MAX_DIMS - len(self.shape)))
        body = _text_to_ints(self.problem, MAX_DIMS) if self.problem else shape
        return [flags, dim, len(self.shape), crc, *_text_to_ints(self.kind, _BODY - _KIND), *body]


def agree(
    op: str, x: Tensor, dim: int | None, sizes: Sizes | None, *, grad: str = "local", group: Group = None
) -> tuple[Tensor, int, tuple[int, ...]]:
    """The input to use, its dim counted from the front, and every rank's size along it.

    Where gradients are summed, a rank whose input needs none takes part in the backward all the same
    if any other rank's does: a detached input that requires grad stands in for its own.

    >>> _, dim, sizes = agree("gather", torch.ones(3, 2), -1, None)
    >>> dim, sizes
    (1, (2,))
    """
    if is_compiling():
        front = dim_from_front(dim or 0, x)
        if sizes is None and is_distributed(group):
            sizes = _sizes_operator(x.detach(), op, dim, grad, x.requires_grad and torch.is_grad_enabled(), group)
        return x, front, sizes_while_compiling(op, x.shape[front], sizes, group)
    claim = examine(op, x, dim, sizes, grad, group)
    (x,), agreed = settle(claim, [x], sizes, grad, group)
    return x, claim.dim or 0, agreed


def settle(
    claim: Claim, xs: Sequence[Tensor], sizes: Sizes | None, grad: str, group: Group
) -> tuple[list[Tensor], tuple[int, ...]]:
    """The inputs to use and every rank's size, after an exchange where there has to be one."""
    rank, world = rank_and_world_or_alone(group)
    if world > 1 and (sizes is None or os.environ.get("SHARED_DISTRIBUTED_CHECK", "0") != "0"):
        found, wanted = exchange(claim, world, group, summed=grad == "sum")
        stand_ins = [grad == "sum" and bool(wanted >> i & 1) and not x.requires_grad for i, x in enumerate(xs)]
        xs = [_stand_in_for(x) if absent else x for x, absent in zip(xs, stand_ins, strict=True)]
    elif claim.problem:
        raise BadInputError(_bad_input(claim.kind.split()[0], {rank: claim.problem}, world))
    else:
        found = claim.shape[claim.dim or 0 :][:1]
    return list(xs), found if claim.sizes is None else claim.sizes


def _stand_in_for(x: Tensor) -> Tensor:
    # a tensor from inference mode can never require grad: its values in a tensor that can
    return (x.clone() if x.is_inference() else x.detach()).requires_grad_()


def agree_on_sizes(x: Tensor, dim: int, group: Group = None) -> tuple[int, ...]:
    """Every rank's size along dim, for tensors that may differ in everything else."""
    claim = examine("gather_sizes", x, dim, None, "local", group)
    if not claim.problem:
        claim = Claim("gather_sizes any any any", (claim.shape[claim.dim or 0],), dim=0)
    return exchange(claim, rank_and_world_or_alone(group)[1], group)[0]


def exchange(claim: Claim, world: int, group: Group, *, summed: bool = False) -> tuple[tuple[int, ...], int]:
    """Every rank's size along dim, and whose gradient any wants; one error on all if claims clash."""
    rows = exchange_header(claim.kind.split()[0], claim.header(), group)
    problems = {rank: _ints_to_text(row[_BODY:]) for rank, row in enumerate(rows) if row[0] & _BAD}
    if problems:
        raise BadInputError(_bad_input(_op_of(rows[0]), problems, world))

    ragged = len(rows[0]) if claim.dim is None else _BODY + claim.dim  # the one column that may differ
    if any(row[1:ragged] != rows[0][1:ragged] or row[ragged + 1 :] != rows[0][ragged + 1 :] for row in rows):
        several = [[0]] * world
        if any("(" in _ints_to_text(row[_KIND:_BODY]) for row in rows):  # a container, and every rank sees that
            several = exchange_header(_op_of(rows[0]), _text_to_ints(claim.several, _SEVERAL), group)
        lines = ["the ranks' calls do not fit together:", *map(_describe, range(world), rows, several)]
        lines.append("Ranks may differ in their size along dim, and in nothing else.")
        raise DisagreementError(f"{_op_of(rows[0])}: " + "\n".join(lines))

    wants = [row[0] >> _WANTS_GRAD for row in rows]
    wanted = 0
    for bits in wants:
        wanted |= bits
    without = [rank for rank, row in enumerate(rows) if not row[0] & _STANDS_IN and wants[rank] != wanted]
    if summed and without:
        wanting = [rank for rank in range(world) if wants[rank]]
        msg = (
            f"{_op_of(rows[0])}: ranks {wanting} of {world} want a summed gradient, but ranks {without} cannot take "
            "part in its backward: grad mode is off, or the call is compiled with an input that requires no grad. "
            "Make them alike on every rank, or use grad='local'."
        )
        raise DisagreementError(msg)
    return tuple(n for row in rows for n in row[ragged : ragged + 1]), wanted


def examine(op: str, x: Tensor, dim: int | None, sizes: Sizes | None, grad: str, group: Group) -> Claim:
    """This rank's claim. What is wrong is part of it, not an exception: the others must hear of it."""
    rank, world = rank_and_world_or_alone(group)
    try:
        if rank < 0:
            raise BadInputError("this process is not a member of the group")
        if grad not in ("sum", "local"):
            raise BadInputError(f"grad must be 'sum' or 'local', got {grad!r}")
        _check_tensor(x, world, group)
        dim = None if op == "all_gather_same_dim" else dim_from_front(dim, x)
        if sizes is None and op == "reduce_scatter":
            raise BadInputError("reduce_scatter needs sizes: they say which rows are whose")
        given = None if sizes is None else _check_sizes(sizes, op, x, dim or 0, rank, world)
    except BadInputError as error:
        return Claim(op, problem=str(error))
    grad_mode = torch.is_grad_enabled()
    kind = f"{op} {grad} {str(x.dtype).removeprefix('torch.')} {x.device.type}"
    return Claim(kind, tuple(x.shape), dim, given, int(x.requires_grad and grad_mode), grad_mode)


def _check_tensor(x: Tensor, world: int, group: Group) -> None:
    if not isinstance(x, Tensor):
        raise BadInputError(f"expected a tensor, got {type(x).__name__}")
    if x.layout != torch.strided or x.is_quantized or x.is_nested:
        raise BadInputError(f"expected a dense, non-quantised tensor, got {x.dtype} in layout {x.layout}")
    if x.ndim > MAX_DIMS:
        raise BadInputError(f"a tensor of {x.ndim} dimensions, at most {MAX_DIMS} are supported")
    if world > 1 and x.device.type not in backend_by_device(group):
        served = ", ".join(backend_by_device(group))
        raise BadInputError(f"shape {tuple(x.shape)} is on {x.device.type}; the process group serves {served}")


def dim_from_front(dim: int | None, x: Tensor) -> int:
    """A dim counted from the front; BadInputError where it is none of the tensor's."""
    if x.ndim == 0:
        raise BadInputError("a 0-d tensor has no dim to gather along: unsqueeze it first")
    try:
        dim = index(dim)  # type: ignore[arg-type]
    except TypeError as error:
        raise BadInputError(f"dim must be an int, got {dim!r}") from error
    if not -x.ndim <= dim < x.ndim:
        raise BadInputError(f"dim {dim} is out of range for shape {tuple(x.shape)}")
    return dim % x.ndim


def _check_sizes(sizes: Sizes, op: str, x: Tensor, dim: int, rank: int, world: int) -> tuple[int, ...]:
    try:
        ints = ints_of(sizes)
    except (TypeError, ValueError) as error:
        raise BadInputError(f"sizes must be one whole number a rank, got {sizes!r}") from error
    if len(ints) != world:
        raise BadInputError(f"sizes has {len(ints)} entries for {world} ranks")
    if min(ints) < 0:
        raise BadInputError(f"sizes has a negative entry: {ints}")
    whole = op == "reduce_scatter"
    expected, what = (sum(ints), "add up to") if whole else (ints[rank], f"at rank {rank} say")
    if x.shape[dim] != expected:
        raise BadInputError(f"sizes {what} {expected}, but dim {dim} of shape {tuple(x.shape)} is {x.shape[dim]}")
    return ints


def _bad_input(op: str, problems: dict[int, str], world: int) -> str:
    return f"{op}: bad input\n" + "\n".join(f"  rank {rank} of {world}: {text}" for rank, text in problems.items())


def _op_of(row: list[int]) -> str:
    return _ints_to_text(row[_KIND:_BODY]).split()[0].partition("(")[0]


def _describe(rank: int, row: list[int], several: list[int]) -> str:
    _, grad, dtype, device = _ints_to_text(row[_KIND:_BODY]).split()
    dim = "" if row[1] == _NO_DIM else f", dim {row[1]}"
    sizes = f", sizes given (crc {row[3] - 1:08x})" if row[3] else ""
    tensors = _ints_to_text(several) or f"shape {tuple(row[_BODY : _BODY + row[2]])} {dtype}"
    return f"  rank {rank}: {_op_of(row)} of {tensors} on {device}{dim}, grad {grad}{sizes}"


@lru_cache
def _text_to_ints(text: str, width: int) -> tuple[int, ...]:
    return struct.unpack(f">{width}q", text.encode()[: 8 * width].ljust(8 * width, b"\0"))


def _ints_to_text(ints: list[int]) -> str:
    return struct.pack(f">{len(ints)}q", *ints).rstrip(b"\0").decode(errors="replace")


# ------------------------------------------------------------------ under torch.compile


def sizes_while_compiling(op: str, own: int, sizes: Sizes | None, group: Group) -> tuple[int, ...]:
    """Sizes as the numbers that the compiler goes on with."""
    rank, world = rank_and_world_or_alone(group)
    if sizes is None or world == 1:
        return (own,)
    agreed = list(ints_of(sizes))
    if len(agreed) != world:
        raise BadInputError(f"{op}: sizes has {len(agreed)} entries for {world} ranks")
    if isinstance(sizes, Tensor):  # the compiler knows nothing of these numbers yet
        for n in agreed:
            torch._check(n >= 0)
        if op != "reduce_scatter":
            torch._check(agreed[rank] == own)
            agreed[rank] = own
    return tuple(agreed)


def exchange_while_compiling(claim: Claim, wants_grad: int, grad: str, group: Group) -> Tensor:
    """The same exchange, inside an opaque operator.

    No input is replaced there: where some ranks want the gradient and one does not, all are told.
    """
    claim = claim._replace(wants_grad=wants_grad, stands_in=False)
    return torch.tensor(exchange(claim, rank_and_world_or_alone(group)[1], group, summed=grad == "sum")[0])


def shape_of_sizes(*call: Any) -> Tensor:
    """A LongTensor `(world,)`, for an operator that takes the group last."""
    return torch.empty(rank_and_world_or_alone(call[-1])[1], dtype=torch.long)


def _agreed_sizes(x: Tensor, op: str, dim: int | None, grad: str, wants_grad: bool, group: Group) -> Tensor:
    return exchange_while_compiling(examine(op, x, dim, None, grad, group), int(wants_grad), grad, group)


_sizes_operator = opaque(
    "agreed_sizes",
    "(Tensor x, str op, int? dim, str grad, bool wants_grad, str group) -> Tensor",
    _agreed_sizes,
    shape_of_sizes,
)
