# SPDX-License-Identifier: MIT
"""A differentiable all-gather for tensors whose size along one dimension differs from rank to rank."""

from ._agreement import agree
from ._autograd import all_gather, all_gather_async, reduce_scatter
from ._errors import BadInputError, DisagreementError, GatherError, StaleAnswerWarning, TransportError
from ._helpers import (
    all_gather_same_dim,
    all_gather_variable_dim,
    gather_sizes,
    gather_with_rows,
    has_only_one_value,
    pad_dim_to,
    split_by_rank,
    warn_if_stale,
)
from ._module import AllGather
from ._sizes import RowLayout, select_rows, sizes_tensor
from ._world import is_distributed

__all__ = [
    "AllGather",
    "BadInputError",
    "DisagreementError",
    "GatherError",
    "RowLayout",
    "StaleAnswerWarning",
    "TransportError",
    "agree",
    "all_gather",
    "all_gather_async",
    "all_gather_same_dim",
    "all_gather_variable_dim",
    "gather_sizes",
    "gather_with_rows",
    "has_only_one_value",
    "is_distributed",
    "pad_dim_to",
    "reduce_scatter",
    "select_rows",
    "sizes_tensor",
    "split_by_rank",
    "warn_if_stale",
]
