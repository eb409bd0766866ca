# SPDX-License-Identifier: MIT
"""The worlds that tests run on. The ranks themselves are tested in tests/tools/test_ranks.py."""

import torch.distributed as dist

from tests.support import Worlds


def backend_of_the_group() -> str:
    return dist.get_backend()


def test_one_world_a_backend_and_size(backend: str, worlds: Worlds) -> None:
    """Asking twice gives the same world."""
    assert worlds.get(backend, 2) is worlds.get(backend, 2)
    assert worlds.get(backend, 2) is not worlds.get(backend, 3)


def test_ranks_run_over_the_backend_that_was_asked_for(backend: str, worlds: Worlds) -> None:
    """Also where that is the strict group of tests/support."""
    assert worlds.get(backend, 2).run(backend_of_the_group) == [backend] * 2
