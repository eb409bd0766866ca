# SPDX-License-Identifier: MIT
"""What a rank does with downstream projects: imports each from its folder, and runs its own check."""

import importlib
import sys
from pathlib import Path

import torch.distributed as dist


def check_alone(folders: list[str]) -> None:
    """Every project's `check.py`, without a process group."""
    _check(folders, 0, 1)


def check_on_rank(rank: int, world: int, store: str, folders: list[str]) -> None:
    """Every project's `check.py`, as one rank of several. A project that fails raises."""
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    _check(folders, rank, world)
    dist.destroy_process_group()


def _check(folders: list[str], rank: int, world: int) -> None:
    for folder in folders:
        before = set(sys.modules)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            importlib.import_module("check").check(rank, world)
        finally:
            sys.path.remove(folder)
            for name in set(sys.modules) - before:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(Path(folder))):
                    del sys.modules[name]
