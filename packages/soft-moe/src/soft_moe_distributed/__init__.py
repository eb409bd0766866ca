# SPDX-License-Identifier: MIT
"""The `distributed.py` of soft-moe, over the shared core.

>>> AllGather(dim=0)(split_by_rank((torch.ones(3, 2),)))[1]
tensor([3])
"""

from typing import Any

from shared_distributed.adapters import (
    _GatherFunction,
    _GatherModule,
    _Ranks,
    all_gather_same_dim,
    all_gather_variable_dim,
    default,
    divisible_by,
    exists,
    gather_sizes,
    has_only_one_value,
    pad_dim_to,
)

__all__ = [
    "AllGather", "AllGatherFunction", "all_gather_same_dim", "all_gather_variable_dim", "default",
    "divisible_by", "exists", "gather_sizes", "has_only_one_value", "pad_dim_to", "split_by_rank",
]  # fmt: skip


AllGatherFunction = _GatherFunction


class AllGather(_GatherModule):
    """`(… n_r …) -> (… sum(n) …)` and the sizes. Without a process group, torch's own error."""


def split_by_rank(x: Any) -> Any:
    return x[_Ranks(None).rank]  # the part alone, without the sizes
