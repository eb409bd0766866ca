# SPDX-License-Identifier: MIT
"""What a rank does with downstream projects: imports each from its folder, and runs its own check."""

import importlib
import sys

import torch.distributed as dist


def check_all(folders: list[str]) -> None:
    """Every project's `check.py`, alone or as one rank of several. A project that fails raises."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
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
