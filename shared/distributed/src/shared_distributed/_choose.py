# SPDX-License-Identifier: MIT
"""Which backend's way a call takes.

Headers go by what the group alone determines: a rank whose tensor is on a wrong device must still reach the others.
Rows go by the group and the device, on which the ranks have then agreed. Nothing else may decide: ranks that choose
differently hang.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._call import AnyBackend, Call, facts_of
from ._gloo import Gloo, takes_short_messages
from ._nccl import Nccl
from ._ranks import _is_nccl


def ranks_for_headers(group: Any, xs: Sequence[Any], dim: Any) -> Call:
    """The ranks that exchange claims. Rows of `xs` may be sent with them."""
    group = group or dist.group.WORLD
    backends = facts_of(group).backends
    device_type = "cpu" if "cpu" in backends else next(iter(backends))
    return _way_of(device_type, backends)(group, xs, dim)


def ranks_for_rows(ranks: Call, device: torch.device) -> Call:
    """The ranks that send rows on this kind of device: the same where they also exchanged claims."""
    way = _way_of(device.type, ranks.backends)
    if type(ranks) is way:
        return ranks
    return way(ranks.group, ranks.xs, ranks.dim)


def _way_of(device_type: str, backends: dict[str, str]) -> type[Call]:
    backend = backends[device_type]
    if _is_nccl(backend):
        return Nccl
    if backend == "gloo" and device_type == "cpu" and takes_short_messages():
        return Gloo
    return AnyBackend
