# SPDX-License-Identifier: MIT
"""What a rank does with a downstream project: imports it from a folder, and runs its own check."""

import importlib
import sys
from pathlib import Path

import torch.distributed as dist


def check_all(folders: list[str]) -> list[str]:
    """Every project's `check.py`; the names of those that passed. A project that fails raises."""
    alone = not (dist.is_available() and dist.is_initialized())
    rank, world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
    for folder in folders:
        before = set(sys.modules)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            importlib.import_module("check").check(rank, world)
        finally:
            sys.path.remove(folder)
            for name in set(sys.modules) - before:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                    del sys.modules[name]
    return [Path(folder).name for folder in folders]
