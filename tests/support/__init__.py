# SPDX-License-Identifier: MIT
"""What the tests stand on.

world       the ranks of the tools, over NCCL's rules and on several hosts too, kept from test to test
oracle      what every rank should see, computed in one process
adapters    what each adapter promises, and all ways to gather under one call
calls       single calls on a rank, with what they raised as data
nccl_rules  a process group that keeps to NCCL's rules, over gloo
hosts       ranks in network namespaces
old_torch   what the oldest supported torch lacks
"""

from .world import Deadlines, RankError, World, WorldFailure, Worlds

__all__ = ["Deadlines", "RankError", "World", "WorldFailure", "Worlds"]
