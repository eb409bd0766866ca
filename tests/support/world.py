# SPDX-License-Identifier: MIT
"""The ranks of the tools, as tests use them: over NCCL's rules and on several hosts too, and kept from test to test."""

import os
from typing import Any

import pytest
import torch

from shared_distributed_tools import ranks
from shared_distributed_tools.ranks import Deadlines, RankError, WorldFailure
from shared_distributed_tools.ranks.rank import Place, join_group, place

from .hosts import enter_host

__all__ = ["Deadlines", "Place", "RankError", "World", "WorldFailure", "Worlds", "device", "join_group", "place"]

# pytest too: ranks import the module of the test
ranks.preload("torch._dynamo.backends.debugging", "shared_distributed", "pytest")


def is_emulated() -> bool:
    """Whether the GPUs are those of tests/emulated."""
    return "EMULATED_DEVICES" in os.environ


needs_triton = pytest.mark.skipif(is_emulated(), reason="what Triton compiles is not emulated")


def is_on_gpus(backend: str) -> bool:
    """Whether the ranks have a GPU each: under any of NCCL's names, such as nccl-legacy or cpu:gloo,cuda:nccl."""
    return "nccl" in backend and backend != "nccl-rules"


def prepare() -> None:
    """What a rank does first: step onto its host, make NCCL's rules known, take its GPU."""
    enter_host(place().rank, place().size)
    if place().backend == "nccl-rules":
        from .nccl_rules import register  # here, since an old torch lacks what it needs

        register()
    if is_on_gpus(place().backend):
        torch.cuda.set_device(place().rank)


def device() -> torch.device:
    """Where the tensors of this rank's world live."""
    return torch.device("cuda", torch.cuda.current_device()) if is_on_gpus(place().backend) else torch.device("cpu")


class World(ranks.World):
    """`size` processes in one process group, or with `join=False` in none yet; a skip says what is missing for them."""

    def __init__(self, size: int, backend: str = "gloo", **options: Any) -> None:
        if is_on_gpus(backend) and size > torch.cuda.device_count():
            pytest.skip(f"needs {size} CUDA devices, found {torch.cuda.device_count()}")
        super().__init__(size, backend, prepare=prepare, **options)


class Worlds:
    """The worlds of a test run, made when first asked for and kept until the end."""

    def __init__(self) -> None:
        self._worlds: dict[tuple[str, int], World] = {}

    def get(self, backend: str, size: int) -> World:
        """The one world of this backend and size."""
        if (backend, size) not in self._worlds:
            self._worlds[backend, size] = World(size, backend)
        return self._worlds[backend, size]

    def close(self) -> None:
        """End them all."""
        for world in self._worlds.values():
            world.close()
        self._worlds.clear()
