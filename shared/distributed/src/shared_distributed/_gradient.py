# SPDX-License-Identifier: MIT
"""Differentiate: this rank's rows of its own gradient or of the sum over all ranks, and derivatives of every order."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from ._ranks import _own_rows


class _Gather(Function):
    """`ranks.gather`, or its adjoint `ranks.sum`. For a summed gradient each is the other's backward.

    `tie` is an empty tensor. It keeps a rank whose loss is linear in the graph: the other ranks' second derivatives
    need that rank too.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:  # unnamed: Dynamo counts named ones wrongly
        ranks, dim, sizes, summed, is_adjoint, tie, *xs = arguments
        tie = tie.clone()
        ctx.save_for_backward(tie)
        ctx.call = (ranks, dim, sizes, summed)
        ctx.is_adjoint = is_adjoint
        move = ranks.sum if is_adjoint else ranks.gather
        return tie, *[move(x, dim, sizes) for x in xs]

    @staticmethod
    def backward(ctx: Any, grad_of_tie: Tensor, *grads: Tensor) -> tuple[Any, ...]:
        ranks, dim, sizes, summed = ctx.call
        dense = [grad.to_dense() if grad.is_sparse else grad for grad in grads]
        if not summed:
            return *[None] * 6, *[_own_rows(ranks, grad, dim, sizes) for grad in dense]
        (tie,) = ctx.saved_tensors
        moved = _Gather.apply(ranks, dim, sizes, summed, not ctx.is_adjoint, tie + grad_of_tie, *dense)
        return *[None] * 5, *moved
