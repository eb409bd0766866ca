# SPDX-License-Identifier: MIT
"""The `distributed.py` of spear-tts, over the shared core.

>>> gathered, sizes = all_gather(torch.ones(3, 2), 0, None)
>>> sizes is None  # alone
True
"""

from shared_distributed.adapters import _GatherOrView, all_gather_variable_dim

__all__ = ["AllGather", "all_gather", "all_gather_variable_dim"]


AllGather = _GatherOrView

all_gather = AllGather.apply
