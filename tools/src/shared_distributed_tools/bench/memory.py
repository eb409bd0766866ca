# SPDX-License-Identifier: MIT
"""The peak of torch's CPU allocations during a call, from the profiler: RSS would show the allocator's habits."""

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object]) -> int:
    """The most that was allocated at one time by `call`, over what there was before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = call()  # alive until the profiler stops: a result freed on the way would hide its bytes
    del kept
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    memory = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    return highest(delta for _, delta in sorted(memory, key=lambda event: event[0]))


def highest(deltas: Iterable[int]) -> int:
    """The highest running sum, at least zero."""
    total = top = 0
    for delta in deltas:
        total += delta
        top = max(top, total)
    return top
