# SPDX-License-Identifier: MIT
"""Real ranks for tests: persistent worker processes, one set a (backend, world size).

    worlds = Worlds()
    worlds.get("gloo", 4).run("subjects:gather_cases", cases)   # -> one result a rank

A case is a function's name and plain arguments; what comes back is data. Three deadlines, each
inside the next, end whatever gets stuck:

    collective   the process group's own timeout: the stuck rank raises by itself
    case         the parent asks every rank still running for its stack
    kill         the parent kills the world; the next `run` starts a new one
"""

from .world import Deadlines, RankError, World, WorldFailure, Worlds

__all__ = ["Deadlines", "RankError", "World", "WorldFailure", "Worlds"]
