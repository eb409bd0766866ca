# SPDX-License-Identifier: MIT
"""The `distributed.py` of gigagan, over the shared core.

>>> gathered, sizes = all_gather(torch.ones(3, 2), 0, None)
>>> sizes is None  # alone
True
"""

from shared_distributed.adapters import _GatherOrView, all_gather_variable_dim, exists, pad_dim_to

__all__ = ["AllGather", "all_gather", "all_gather_variable_dim", "exists", "pad_dim_to"]


AllGather = _GatherOrView

all_gather = AllGather.apply
