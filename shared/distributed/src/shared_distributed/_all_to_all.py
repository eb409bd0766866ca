# SPDX-License-Identifier: MIT
"""Rows to the ranks that need them: a ragged all-to-all, with its gradient."""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from ._agree import _are_trusted
from ._choose import ranks_for_headers, ranks_for_rows
from ._compiled import IN_ONE_GRAPH, TracedRanks, _latest, operator
from ._containers import pack, unpack
from ._errors import BadInputError
from ._gather import group_of
from ._layout import Sizes, ints_of
from ._ranks import _is_compiling, _is_distributed
from ._together import agree_on_all, check_all, in_one_order
from ._usable import refuse_tracing

T = TypeVar("T", bound=Tensor | list[Tensor] | tuple[Tensor, ...] | dict[str, Tensor])


def all_to_all(
    x: T, sizes: Sizes, dim: int = 0, *, received: Sizes | None = None, group: Any = None
) -> tuple[T, tuple[int, ...]]:
    """Send each rank the rows that it needs; differentiable.

        (… sum(sizes) …) on rank r  ->  (… sum(received) …), and how many rows came from each rank

    The rows come in rank order. The gradient is the same exchange in reverse, and always the true one.

    Args:
        x: any dense tensor; all ranks agree on dtype and on every dimension but `dim`. Or a list, tuple or dict of
            tensors with one size along `dim`.
        sizes: `sizes[r]` rows of `x` go to rank r, in order. They add up to the size of `x` along `dim`.
        dim: the dim of the rows; may be negative.
        received: how many rows come from each rank, if known. Saves the exchange of sizes, and with it the check that
            the ranks' calls fit together.
        group: the process group, a 1-d mesh, or a mesh and its dim; ranks are counted within the group.

    >>> rows, received = all_to_all(torch.ones(3, 2), [3])
    >>> received
    (3,)
    """
    operation, keys, xs, problem = unpack("all_to_all", x)
    group = group_of(group)
    is_alone = not _is_distributed(group)
    rank, world = (0, 1) if is_alone else (dist.get_rank(group), dist.get_world_size(group))
    sent: Any = [0] * world
    expected: Any = None
    try:
        sent = list(ints_of(sizes))
        expected = None if received is None else list(ints_of(received))
        problem = problem or problem_with_sizes(xs, dim, sent, expected, rank, world)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        problem = problem or f"sizes {sizes}, received {received}: {error}"
    if is_alone:
        if problem:
            raise BadInputError(f"cannot send {[getattr(t, 'shape', type(t)) for t in xs]} along dim {dim}: {problem}")
        return x, tuple(sent)
    if problem:
        sent = [0] * world  # as many as the other ranks have
    agree = _agree_while_tracing if IN_ONE_GRAPH and _is_compiling() else _agree_to_swap
    ranks, xs, dim, expected = agree(operation, xs, dim, sent, expected, group, problem)
    swapped = in_one_order(
        xs,
        differentiably=lambda wanting: _differentiably(ranks, wanting, dim, sent, expected),
        plainly=lambda t: ranks.swap(t, dim, sent, expected),
    )
    return pack(x, keys, swapped), tuple(expected)


def problem_with_sizes(
    xs: list[Any], dim: Any, sent: list[int], received: list[int] | None, rank: int, world: int
) -> str:
    """What is wrong with the sizes, as far as this rank can see; empty if nothing."""
    if len(sent) != world or min(sent) < 0:
        return f"sizes {sent} for {world} ranks"
    if any(t.shape[dim] != sum(sent) for t in xs):
        return f"sizes {sent} do not add up to the size along dim {dim}"
    if received is None:
        return ""
    if len(received) != world or min(received) < 0:
        return f"received {received} for {world} ranks"
    if received[rank] != sent[rank]:
        return f"rank {rank} sends itself {sent[rank]} rows, and received {received} says {received[rank]}"
    return ""


def _agree_to_swap(
    operation: str,
    xs: list[Any],
    dim: Any,
    sent: list[int],
    received: list[int] | None,
    group: Any,
    problem: str,
    can_join: bool = True,
) -> tuple[Any, list[Tensor], int, list[int]]:
    """The ranks, the tensors to send, their dim counted from the front, and how many rows come from each rank."""
    refuse_tracing()
    ranks: Any = ranks_for_headers(group, xs if received is None else [], dim)
    if _are_trusted(received):
        check_all(ranks, operation, xs, dim, None, problem)
        return ranks_for_rows(ranks, xs[0].device), xs, dim % xs[0].ndim, list(received or ())

    is_given = "with" if received is not None else "without"
    operation = f"{operation} {is_given} received"
    ranks.numbers = sent
    xs, _ = agree_on_all(ranks, operation, xs, dim, None, True, check=True, problem=problem, can_join=can_join)
    mover: Any = ranks_for_rows(ranks, xs[0].device)
    if ranks.everyones_numbers:
        found = [numbers[ranks.rank] for numbers in ranks.everyones_numbers]
    else:  # too many for the header
        counts = torch.tensor(sent, dtype=torch.long, device=xs[0].device)
        ones = [1] * ranks.world
        found = mover.swap(counts, 0, ones, ones).tolist()
    if received is not None:  # another exchange, so that all ranks hear of sizes that one of them finds wrong
        if received != found:
            problem = f"received {received}, but the other ranks send {found}"
        ranks.numbers = ()
        agree_on_all(ranks, operation, xs, dim, None, True, check=True, problem=problem)
    return mover, xs, dim % xs[0].ndim, found


class _Swap(Function):
    """`ranks.swap`. The backward of an exchange is the same exchange in reverse.

    `tie` is an empty tensor that keeps a rank whose loss is linear in the graph, as in `_Gather`.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        ranks, dim, sent, received, tie, *xs = arguments
        tie = tie.clone()
        ctx.save_for_backward(tie)
        ctx.call = (ranks, dim, sent, received)
        return tie, *[ranks.swap(x, dim, sent, received) for x in xs]

    @staticmethod
    def backward(ctx: Any, grad_of_tie: Tensor, *grads: Tensor) -> tuple[Any, ...]:
        ranks, dim, sent, received = ctx.call
        (tie,) = ctx.saved_tensors
        dense = [grad.to_dense() if grad.is_sparse else grad for grad in grads]
        return *[None] * 4, *_Swap.apply(ranks, dim, received, sent, tie + grad_of_tie, *dense)


def _differentiably(ranks: Any, xs: list[Tensor], dim: int, sent: Any, received: Any) -> list[Tensor]:
    tie = torch.zeros(0, dtype=torch.float32, device=xs[0].device)
    _, *swapped = _Swap.apply(ranks, dim, sent, received, tie, *xs)
    return swapped


def _agree_while_tracing(
    operation: str, xs: list[Any], dim: Any, sent: list[int], received: list[int] | None, group: Any, problem: str
) -> tuple[Any, list[Tensor], int, Any]:
    """As `_agree_while_tracing` in `_compiled`: no input is replaced here."""
    if not isinstance(dim, int):
        dim, problem = 0, problem or f"dim {dim!a} is not an integer"
    wants = [x.requires_grad and torch.is_grad_enabled() for x in xs]
    tensors = [x.detach() for x in xs]
    found = _agree_to_swap_operator(tensors, wants, operation, problem, dim, sent, received, group)
    ranks = TracedRanks(group, received is None)
    if xs:
        dim = dim % max(xs[0].ndim, 1)
    if received is not None:
        return ranks, xs, dim, [*received, *[0] * ranks.world][: ranks.world]
    sizes = found.tolist()
    for size in sizes:
        torch._check(size >= 0)
    sizes[ranks.rank] = sent[ranks.rank]
    return ranks, xs, dim, sizes


def _agree_in_operator(
    xs: list[Tensor],
    wants: list[bool],
    operation: str,
    problem: str,
    dim: int,
    sent: list[int],
    received: list[int] | None,
    group: Any,
) -> Tensor:
    with torch.enable_grad():
        xs = [x.detach().requires_grad_(want) for x, want in zip(xs, wants, strict=True)]
        ranks, _, _, found = _agree_to_swap(operation, xs, dim, sent, received, group, problem, can_join=False)
    _latest.ranks = ranks
    return torch.tensor(found, dtype=torch.long, device="cpu")


def _shape_of_received(*arguments: Any) -> Tensor:
    return torch.empty(dist.get_world_size(arguments[-1]), dtype=torch.long, device="cpu")


_agree_to_swap_operator = operator(
    "agree_to_swap",
    "(Tensor[] xs, bool[] wants, str operation, str problem, int dim, SymInt[] sent, SymInt[]? received, str group) "
    "-> Tensor",
    _agree_in_operator,
    _shape_of_received,
)
