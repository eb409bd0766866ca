# SPDX-License-Identifier: MIT
"""Differentiate: own rows of this rank's gradient, or of the sum over all ranks; derivatives of every order."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from ._world import _graph_break


class _Move(Function):
    """Differentiate: `rows.gather`, or its adjoint `rows.sum`. For a summed gradient each is the other's backward.

    `tie`, an empty tensor, keeps a rank whose loss is linear in the graph, and so in the others' second derivatives.
    """

    @staticmethod
    @_graph_break  # here, since Dynamo of torch 2.4 cannot go on inside a Function
    def forward(ctx: Any, *call: Any) -> tuple[Tensor, ...]:  # (rows, adjoint, tie, *xs): Dynamo miscounts named ones
        ctx.rows, ctx.adjoint, tie, *xs = call
        ctx.save_for_backward(tie := tie.clone())
        return tie, *[ctx.rows.sum(x) if ctx.adjoint else ctx.rows.gather(x) for x in xs]

    @staticmethod
    def backward(ctx: Any, grad_tie: Tensor, *grads: Tensor) -> tuple[Any, ...]:
        if ctx.rows.summed:
            return None, None, *_Move.apply(ctx.rows, not ctx.adjoint, ctx.saved_tensors[0] + grad_tie, *grads)
        return None, None, None, *[ctx.rows.own(grad.to_dense() if grad.is_sparse else grad) for grad in grads]
