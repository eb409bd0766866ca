# SPDX-License-Identifier: MIT
"""The `distributed.py` of ring-attention, over the shared core.

>>> AllGather(dim=0)(*split_by_rank((torch.ones(3, 2),)))[1]
tensor([3])
"""

from shared_distributed.adapters import (
    _asked_once,
    _GatherFunction,
    _GatherModule,
    _is_distributed,
    _Ranks,
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
    "AllGather", "AllGatherFunction", "all_gather", "all_gather_same_dim", "all_gather_variable_dim",
    "default", "divisible_by", "exists", "gather_sizes", "get_rank", "get_world_size", "has_only_one_value",
    "is_distributed", "pad_dim_to", "split_by_rank",
]  # fmt: skip


AllGatherFunction = _GatherFunction
all_gather = AllGatherFunction.apply


class AllGather(_GatherModule):
    """`(… n_r …) -> (… sum(n) …)` and the sizes. Without a process group, torch's own error."""


@_asked_once
def get_rank() -> int:
    """0 without a process group. This answer and the next two are remembered for the process, as the original's are."""
    return _Ranks(None).rank if _is_distributed() else 0


@_asked_once
def get_world_size() -> int:
    """1 without a process group."""
    return _Ranks(None).world if _is_distributed() else 1


@_asked_once
def is_distributed() -> bool:
    """Whether there is more than one rank."""
    return _is_distributed()
