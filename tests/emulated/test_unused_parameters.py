# SPDX-License-Identifier: MIT
"""What does not work on NCCL under DDP with `find_unused_parameters`; see tests/nccl/test_unused_parameters.py."""

import pytest

from tests.nccl.test_unused_parameters import SMALL_BUCKETS, WORLD, gradients_of_last_step
from tests.support import World, WorldFailure


@pytest.mark.parametrize(
    ("name", "own_group", "words"),
    [("nccl", False, "MISMATCH"), ("nccl-legacy", False, "MISMATCH"), ("nccl", True, "HANG")],
)
def test_a_shared_group_or_a_shared_stream_is_not_enough(name: str, own_group: bool, words: str, backend: str) -> None:
    """In DDP's own group sums and gathers meet each other; on one stream they wait for each other."""
    with World(WORLD, name, join=False) as world, pytest.raises(WorldFailure, match=f"EMULATED NCCL: {words}"):
        world.run(gradients_of_last_step, own_group, False, SMALL_BUCKETS)
