# SPDX-License-Identifier: MIT
"""Real ranks: persistent processes that run the functions they are given, and what they should see.

    with World(4) as world:
        world.run(function, argument)      # -> one result a rank

A function has to be importable, since it is sent by its name; its arguments and its result are data. Two deadlines,
one inside the other, end whatever gets stuck:

    collective   the process group's own timeout: the stuck rank raises by itself
    case         every rank still running shows its stack, and the world is killed; the next `run` starts a new one
"""

from .rank import RankError
from .world import CRASHED, HUNG, Deadlines, World, WorldFailure, preload, start_server

__all__ = ["CRASHED", "HUNG", "Deadlines", "RankError", "World", "WorldFailure", "preload", "start_server"]
