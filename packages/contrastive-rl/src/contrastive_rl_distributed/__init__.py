# SPDX-License-Identifier: MIT
"""The `distributed.py` of contrastive-rl, over the shared core.

>>> AllGather(dim=0)(*split_by_rank((torch.ones(3, 2),)))[1]
tensor([3])
"""

from shared_distributed.adapters import (
    _GatherFunction,
    _GatherModule,
    _is_distributed,
    all_gather_same_dim,
    all_gather_variable_dim,
    default,
    divisible_by,
    exists,
    gather_sizes,
    has_only_one_value,
    pad_dim_to,
    split_by_rank,
)

__all__ = [
    "AllGather", "AllGatherFunction", "all_gather_same_dim", "all_gather_variable_dim", "default",
    "divisible_by", "exists", "gather_sizes", "has_only_one_value", "is_distributed", "pad_dim_to",
    "split_by_rank",
]  # fmt: skip


AllGatherFunction = _GatherFunction


class AllGather(_GatherModule):
    """`(… n_r …) -> (… sum(n) …)` and the sizes. Without a process group, torch's own error."""


def is_distributed() -> bool:
    return _is_distributed()  # asked at every call
