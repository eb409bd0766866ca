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

# gloo takes 0.43 ms for the headers of 8 ranks and 1.5 ms for 32, so about 3 ms for 64 and 49 ms for 1024. By NCCL's
# own model of its speed they take 0.01 ms on 8 ranks, 0.09 ms on 64 and 1.3 ms on 1024, and the wait for the GPU
MOST_RANKS_ON_CPU = 64


def ranks_for_headers(group: Any, xs: Sequence[Any], dim: Any) -> Call:
    """The ranks that exchange claims. Rows of `xs` may be sent with them."""
    group = group or dist.group.WORLD
    facts = facts_of(group)
    if "header" not in facts.ways:
        device_type = _device_type_of_headers(facts.backends, facts.world)
        facts.ways["header"] = _way_of(device_type, facts.backends)
    return facts.ways["header"](group, xs, dim)


def ranks_for_rows(ranks: Call, device: torch.device) -> Call:
    """The ranks that send rows on this kind of device: the same where they also exchanged claims."""
    ways = ranks.facts.ways
    if device.type not in ways:
        ways[device.type] = _way_of(device.type, ranks.backends)
    way = ways[device.type]
    if type(ranks) is way:
        return ranks
    return way(ranks.group, ranks.xs, ranks.dim)


def _device_type_of_headers(backends: dict[str, str], world: int) -> str:
    """The CPU if a backend serves it: nobody has to wait for a GPU there. With many ranks NCCL, if the group has it."""
    on_nccl = [device_type for device_type, backend in backends.items() if _is_nccl(backend)]
    if "cpu" in backends and not (on_nccl and world > MOST_RANKS_ON_CPU):
        return "cpu"
    return (on_nccl or list(backends))[0]


def _way_of(device_type: str, backends: dict[str, str]) -> type[Call]:
    backend = backends[device_type]
    if _is_nccl(backend):
        return Nccl
    if backend == "gloo" and device_type == "cpu" and takes_short_messages():
        return Gloo
    return AnyBackend
