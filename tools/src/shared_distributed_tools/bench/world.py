# SPDX-License-Identifier: MIT
"""The ranks: one set a world size, started once, asked point by point."""

import traceback
from multiprocessing.connection import Connection

from ..processes import Place, Processes
from .cases import Mode, Point
from .measure import Timing, measure

PRELOADED = (
    *(f"{__package__}.measure", "torchmetrics.utilities.distributed", "accelerate.utils.operations"),
    "torch._dynamo",  # a first backward imports parts of it, a first functional collective all: on every rank
)
_PATIENCE = 600.0  # seconds for one point; the longest takes a tenth of it
_GRACE = 30.0  # seconds for the other ranks, which have the same steps behind them


class RankFailedError(RuntimeError):
    """A rank raised, died or did not answer; the message carries what it wrote."""


class World(Processes):
    """`size` ranks over gloo, each with one thread."""

    def __init__(self, size: int) -> None:
        super().__init__(size, PRELOADED, _serve)

    def measure(self, point: Point, mode: Mode, budget: float) -> list[Timing]:
        """Run one point on all ranks; rank 0's account, as all ranks hold the same numbers."""
        self.send((point, mode, budget))
        answers, broken = self.answers(_PATIENCE, _GRACE)
        where = f"of {self.size} failed at {point}, {mode}"
        failed = [f"rank {rank} {where}\n{said}" for rank, said in enumerate(answers) if isinstance(said, str)]
        if broken:
            silent = [rank for rank, said in enumerate(answers) if said is None]
            failed.append(f"ranks {silent} {where}: no answer, one {broken}")
        if failed:
            raise RankFailedError("\n".join([*failed, self.printed()]))
        timings: list[Timing] = answers[0]
        return timings


def _serve(place: Place, requests: Connection) -> None:
    try:
        place.join()
        while True:  # ends with the pipe
            requests.send(measure(*requests.recv()))
    except EOFError:
        pass
    except BaseException:
        requests.send(traceback.format_exc())
