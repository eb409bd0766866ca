# SPDX-License-Identifier: MIT
"""The worlds that tests run on. The ranks themselves are tested in tests/tools/test_ranks.py."""

import torch.distributed as dist

from tests.support import Worlds


def backend_of_the_group() -> str:
    return dist.get_backend()


def test_one_world_a_backend_and_size(worlds: Worlds) -> None:
    """Asking twice gives the same world."""
    assert worlds.get("gloo", 2) is worlds.get("gloo", 2)
    assert worlds.get("gloo", 2) is not worlds.get("gloo", 3)


def test_ranks_run_over_the_backend_that_was_asked_for(backend: str, worlds: Worlds) -> None:
    """Also where that is the strict group of tests/support."""
    assert worlds.get(backend, 2).run(backend_of_the_group) == [backend] * 2
