# SPDX-License-Identifier: MIT
"""Many tensors in one call: the ranks agree on them together, and move them in one order."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._agree import _CANNOT_JOIN, _are_trusted, _check, _Claim, _claim, _compare, _has_shape, _raise_on_all
from ._errors import BadInputError, DisagreementError
from ._gradient import _Gather
from ._usable import problem_with

MOST_FLAGS = 62  # that fit into an int of 64 bits


def agree_on_all(
    ranks: Any,
    operation: str,
    xs: list[Any],
    dim: Any,
    sizes: Any,
    summed: bool,
    *,
    check: bool,
    problem: str = "",
    can_join: bool = True,
) -> tuple[list[Tensor], tuple[int, ...]]:
    """The tensors to gather, and every rank's size, one for all tensors. As `_agree` does it for one.

    problem: what the caller finds wrong with the call; can_join: as in a claim, if grad mode allows it.
    """
    if _are_trusted(sizes) and not check:
        return xs, check_all(ranks, operation, xs, dim, sizes, problem)
    claim, words = claim_all(ranks, operation, xs, dim, sizes, summed, problem)
    claim = claim._replace(can_join=claim.can_join and can_join)
    claims = _compare(ranks, claim, words)
    if summed:
        wanted = wanted_by_any(ranks, xs, claims, words)
        xs = [joining(x) if flag == "1" else x for x, flag in zip(xs, wanted, strict=True)]
        if len(ranks.arrived) > 1:
            ranks.arrived = [ranks.arrived[i] for i in order_of_moves(xs)]
    return xs, tuple(each.size for each in claims)


def joining(x: Tensor) -> Tensor:
    """A tensor that takes part in the summed backward, if need be only for the sake of other ranks."""
    return x if x.requires_grad else x.clone().requires_grad_()


def check_all(ranks: Any, operation: str, xs: list[Any], dim: Any, sizes: Any, problem: str) -> Any:
    """`sizes` as ints. BadInputError for what this rank finds wrong by itself."""
    for x in xs:
        problem = problem or problem_with(x)
    if problem:
        raise BadInputError(f"{in_words(ranks, operation, xs)}, dim {dim!a}: {problem}")
    checked = [_check(ranks, operation, x, dim, sizes) for x in xs]
    _, sizes = checked[0]
    return sizes


def claim_all(
    ranks: Any, operation: str, xs: list[Any], dim: Any, sizes: Any, summed: bool, problem: str
) -> tuple[_Claim, str]:
    """One claim for many tensors. For a single tensor it is the claim of `_agree`."""
    for x in xs:
        problem = problem or problem_with(x)
    claims = []
    words = []
    for x in xs if not problem else []:
        claim, words_of_x = _claim(ranks, operation, x, dim, sizes, summed)
        if claim.digest == 0 or len(xs) == 1:
            return claim, words_of_x
        _, _, must_be_equal = words_of_x.partition("; ")
        claims.append(claim)
        words.append(must_be_equal)
    found = {claim.size for claim in claims}
    if len(found) > 1:
        problem = f"expected tensors of one size along dim, got sizes {sorted(found)}"
    if problem:
        unusable = _Claim(0, 0, 0, torch.is_grad_enabled())
        return unusable, f"{in_words(ranks, operation, xs)}, dim {dim!a}: {problem}"

    together = _Claim(
        digest=hash_of([claim.digest for claim in claims]),
        size=claims[0].size,
        wants_gradient=number_of(flags(xs)),
        can_join=claims[0].can_join,
    )
    grad_modes = f"requires_grad {[x.requires_grad for x in xs]}, grad_enabled={torch.is_grad_enabled()}"
    return together, "; ".join([f"{in_words(ranks, operation, xs)}, {grad_modes}", *words])


def in_words(ranks: Any, operation: str, xs: list[Any]) -> str:
    """Such as: rank 0 of 2: all_gather[2] of (3, 4) torch.float32 on cpu, (3,) torch.int64 on cpu."""
    tensors = [f"{tuple(x.shape)} {x.dtype} on {x.device}" if _has_shape(x) else str(type(x)) for x in xs]
    return f"rank {ranks.rank} of {ranks.world}: {operation} of {', '.join(tensors)}"


def hash_of(numbers: Sequence[int]) -> int:
    """The same in every process, as Python's hash of ints is. Never 0, which stands for a call that cannot be used."""
    return hash(tuple(numbers)) or 1


def flags(xs: list[Tensor]) -> str:
    """A digit for each tensor: whether this rank wants its gradient."""
    return "".join("1" if _wants_gradient(x) else "0" for x in xs)


def number_of(flags: str) -> int:
    """Flags as a claim holds them. More than fit into an int are compared only, and then exchanged in words."""
    if len(flags) > MOST_FLAGS:
        return hash_of(flags.encode())
    return int(flags, base=2)


def wanted_by_any(ranks: Any, xs: list[Tensor], claims: list[_Claim], words: str) -> str:
    """For each tensor, whether any rank wants its gradient. A rank that cannot join is an error on every rank."""
    own = flags(xs)
    if len({claim.wants_gradient for claim in claims}) == 1:
        return own
    if len(xs) > MOST_FLAGS:
        by_rank = ranks.exchange_words(own)
    else:
        by_rank = [f"{claim.wants_gradient:0{len(xs)}b}" for claim in claims]
    wanted = "".join(max(of_tensor) for of_tensor in zip(*by_rank, strict=True))
    for claim, of_rank in zip(claims, by_rank, strict=True):
        if of_rank != wanted and not claim.can_join:
            _raise_on_all(ranks, DisagreementError, _CANNOT_JOIN, words)
    return wanted


def move_all(
    ranks: Any, xs: list[Tensor], dim: int, sizes: Sequence[int], summed: bool, is_adjoint: bool = False
) -> list[Tensor]:
    """Every tensor gathered, or summed by the adjoint, in one order of collectives on every rank."""
    if not summed:
        return [_differentiably(ranks, [x], dim, sizes, summed, is_adjoint)[0] for x in xs]
    move = ranks.sum if is_adjoint else ranks.gather
    return in_one_order(
        xs,
        differentiably=lambda wanting: _differentiably(ranks, wanting, dim, sizes, summed, is_adjoint),
        plainly=lambda x: move(x, dim, sizes),
    )


def in_one_order(
    xs: list[Tensor],
    differentiably: Callable[[list[Tensor]], list[Tensor]],
    plainly: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """Every tensor moved: those that want a summed gradient first and in one Function, then the others one by one.

    In one Function, since autograd then gives zeros for those that a rank's loss leaves out: so every rank enters the
    same collectives of the backward in the same order.
    """
    order = order_of_moves(xs)
    wanting = [xs[i] for i in order if _wants_gradient(xs[i])]
    moved = differentiably(wanting) if wanting else []
    for i in order[len(wanting) :]:
        moved.append(plainly(xs[i]))
    in_place: list[Any] = [None] * len(xs)
    for i, tensor in zip(order, moved, strict=True):
        in_place[i] = tensor
    return in_place


def order_of_moves(xs: list[Tensor]) -> list[int]:
    """The positions of tensors that want a summed gradient, then those of the others."""
    positions = range(len(xs))
    wanting = [i for i in positions if _wants_gradient(xs[i])]
    return wanting + [i for i in positions if i not in wanting]


def _wants_gradient(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def _differentiably(
    ranks: Any, xs: list[Tensor], dim: int, sizes: Sequence[int], summed: bool, is_adjoint: bool
) -> list[Tensor]:
    tie = torch.zeros(0, dtype=torch.float32, device=xs[0].device)
    _, *moved = _Gather.apply(ranks, dim, sizes, summed, is_adjoint, tie, *xs)
    return moved
