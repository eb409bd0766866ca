# SPDX-License-Identifier: MIT
"""Rows to the ranks that need them: a ragged all-to-all, with its gradient."""

from collections.abc import Sequence
from operator import index
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from ._agree import _are_trusted
from ._choose import ranks_for_headers, ranks_for_rows
from ._compiled import IN_ONE_GRAPH, TracedRanks, _latest, _of_length, _within, operator
from ._containers import pack, unpack
from ._gather import _check_alone, group_of
from ._layout import Sizes, ints_of
from ._ranks import _is_compiling, _is_distributed, _long_tensor
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
    if not _is_distributed(group):
        sent, _, problem = _read_counts(xs, dim, sizes, received, rank=0, world=1, problem=problem)
        _check_alone(xs, problem, dim, sent)
        return x, tuple(sent)

    agree = _agree_while_tracing if IN_ONE_GRAPH and _is_compiling() else _agree_to_swap
    ranks, xs, dim, sent, found = agree(operation, xs, dim, sizes, received, group, problem)
    swapped = in_one_order(
        xs,
        differentiably=lambda wanting: _differentiably(ranks, wanting, dim, sent, found),
        plainly=lambda t: ranks.swap(t, dim, sent, found),
    )
    return pack(x, keys, swapped), tuple(found)


def _read_counts(
    xs: list[Any], dim: Any, sizes: Any, received: Any, rank: int, world: int, problem: str
) -> tuple[list[int], list[int], str]:
    """How many rows go to each rank, how many come from each if that is known, and what is wrong with the call."""
    try:
        sent = list(ints_of(sizes))
        expected = list(ints_of(received)) if received is not None else []
        problem = problem or _problem_with_counts(xs, dim, sent, expected, received is not None, rank, world)
    except Exception as error:  # whatever it is, the other ranks have to hear of it
        problem = problem or f"sizes {sizes!a}, received {received!a}: {error}"
    if problem:
        return [0] * world, [], problem  # as many numbers as the other ranks send
    return sent, expected, ""


def _problem_with_counts(
    xs: list[Any], dim: Any, sent: list[int], expected: list[int], is_given: bool, rank: int, world: int
) -> str:
    """What is wrong with the counts, as far as this rank can see; empty if nothing."""
    if len(sent) != world or min(sent) < 0:
        return f"sizes {sent} for {world} ranks"
    for x in xs:
        if not _has_size(x, dim, sum(sent)):
            return f"sizes {sent} do not add up to the size along dim {dim}"
    if not is_given:
        return ""
    if len(expected) != world or min(expected) < 0:
        return f"received {expected} for {world} ranks"
    if expected[rank] != sent[rank]:
        return f"rank {rank} sends itself {sent[rank]} rows, but received {expected} says {expected[rank]}"
    return ""


def _has_size(x: Any, dim: Any, size: int) -> bool:
    """Whether `x` has this size along `dim`; also where it has no such dim, which is for the heart to say."""
    try:
        return bool(x.shape[dim] == size)
    except Exception:
        return True


def _agree_to_swap(
    operation: str,
    xs: list[Any],
    dim: Any,
    sizes: Any,
    received: Any,
    group: Any,
    problem: str,
    can_join: bool = True,
) -> tuple[Any, list[Tensor], int, list[int], list[int]]:
    """The ranks, the tensors to send, their dim counted from the front, the rows for each rank and from each."""
    refuse_tracing()
    ranks: Any = ranks_for_headers(group, xs if received is None else [], dim)
    sent, expected, problem = _read_counts(xs, dim, sizes, received, ranks.rank, ranks.world, problem)
    if _are_trusted(received):
        check_all(ranks, operation, xs, dim, None, problem)
        return ranks_for_rows(ranks, xs[0].device), xs, index(dim) % xs[0].ndim, sent, expected

    is_given = "with" if received is not None else "without"
    operation = f"{operation} {is_given} received"
    ranks.numbers = sent
    xs, _ = agree_on_all(ranks, operation, xs, dim, None, True, check=True, problem=problem, can_join=can_join)
    mover: Any = ranks_for_rows(ranks, xs[0].device)
    if ranks.everyones_numbers:
        found = [numbers[ranks.rank] for numbers in ranks.everyones_numbers]
    else:  # too many for the header
        counts = _long_tensor(sent, xs[0].device)
        ones = [1] * ranks.world
        found = mover.swap(counts, 0, ones, ones).tolist()
    if received is not None:  # another exchange, so that all ranks hear of counts that one of them finds wrong
        if expected != found:
            problem = f"received {expected}, but the other ranks send {found}"
        ranks.numbers = ()
        agree_on_all(ranks, operation, xs, dim, None, True, check=True, problem=problem, can_join=can_join)
    return mover, xs, index(dim) % xs[0].ndim, sent, found


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
        return *[None] * 4, *_Swap.apply(ranks.later, dim, received, sent, tie + grad_of_tie, *dense)


def _differentiably(
    ranks: Any, xs: list[Tensor], dim: int, sent: Sequence[int], received: Sequence[int]
) -> list[Tensor]:
    tie = torch.zeros(0, dtype=torch.float32, device=xs[0].device)
    _, *swapped = _Swap.apply(ranks, dim, sent, received, tie, *xs)
    return swapped


def _agree_while_tracing(
    operation: str, xs: list[Any], dim: Any, sizes: Any, received: Any, group: Any, problem: str
) -> tuple[Any, list[Tensor], int, list[int], list[int]]:
    """As `_agree_while_tracing` in `_compiled`: no input is replaced here, and the operator finds what is wrong."""
    if not isinstance(dim, int):
        dim, problem = 0, problem or f"dim {dim!a} is not an integer"
    sent, problem = _traceable_ints(sizes, problem)
    expected = None
    if received is not None:
        expected, problem = _traceable_ints(received, problem)
    wants = [x.requires_grad and torch.is_grad_enabled() for x in xs]
    tensors = [x.detach() for x in xs]
    found = _agree_to_swap_operator(tensors, wants, operation, problem, dim, sent, expected, group)

    ranks = TracedRanks(group, received is None)
    dim = _within(xs[0], dim) if xs else dim
    agreed = found.tolist() if expected is None else _of_length(expected, ranks.world)
    for size in agreed:  # the compiler knows nothing of these numbers yet
        torch._check(size >= 0)
    sent = _of_length(sent, ranks.world)
    if xs and xs[0].ndim:
        sent = _adding_up(sent, xs[0].shape[dim])
    return ranks, xs, dim, sent, agreed


def _traceable_ints(sizes: Any, problem: str) -> tuple[list[int], str]:
    """Sizes that an operator takes. What it cannot take is an error when the graph runs, on every rank."""
    if isinstance(sizes, Tensor) and (sizes.ndim != 1 or sizes.is_floating_point() or sizes.is_complex()):
        return [], problem or f"sizes are a tensor of {sizes.dtype} with {sizes.ndim} dims, not a row of ints"
    if not isinstance(sizes, (Tensor, list, tuple)):
        return [], problem or f"sizes are of {type(sizes)}, not a row of ints"
    numbers = list(ints_of(sizes))
    for number in numbers:
        if not isinstance(number, int):
            return [], problem or f"{number!a} in sizes is not an integer"
    return numbers, problem


def _adding_up(sent: list[int], size: int) -> list[int]:
    """The same counts, so that the compiler sees that they add up to the size. If they do not, the operator raises."""
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    if not guard_or_true(sum(sent) == size):
        sent = [0] * len(sent)
    return [*sent[:-1], size - sum(sent[:-1])]


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
        ranks, *_, found = _agree_to_swap(operation, xs, dim, sent, received, group, problem, can_join=False)
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
