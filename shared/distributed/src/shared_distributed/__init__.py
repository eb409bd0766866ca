# SPDX-License-Identifier: MIT
"""A differentiable all-gather for tensors whose size along one dimension differs from rank to rank."""

from ._all_to_all import all_to_all
from ._each import all_gather_each
from ._errors import BadInputError, DisagreementError, GatherError, StaleAnswerWarning, TransportError
from ._gather import all_gather, all_gather_async, is_distributed, reduce_scatter
from ._layout import RowLayout
from ._loop import until_all_done
from ._module import AllGather
from ._stand_in import allow_no_rows
from .adapters import (
    all_gather_same_dim,
    all_gather_variable_dim,
    gather_sizes,
    has_only_one_value,
    pad_dim_to,
    split_by_rank,
)

__all__ = [
    "AllGather",
    "BadInputError",
    "DisagreementError",
    "GatherError",
    "RowLayout",
    "StaleAnswerWarning",
    "TransportError",
    "all_gather",
    "all_gather_async",
    "all_gather_each",
    "all_gather_same_dim",
    "all_gather_variable_dim",
    "all_to_all",
    "allow_no_rows",
    "gather_sizes",
    "has_only_one_value",
    "is_distributed",
    "pad_dim_to",
    "reduce_scatter",
    "split_by_rank",
    "until_all_done",
]
