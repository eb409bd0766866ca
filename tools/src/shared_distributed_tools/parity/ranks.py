# SPDX-License-Identifier: MIT
"""The ranks of one side, each with its module loaded. Whatever happens in them becomes an outcome here."""

import warnings
from multiprocessing.connection import Connection
from typing import NamedTuple

from ..errors import ToolError
from ..processes import Place, Processes
from .cases import Case
from .loading import Description, Subject, describe, load
from .seen import Outcome
from .worker import Actor, in_names

# a user's code is never among it; the last is what a first backward imports
PRELOADED = (__name__, "einops", "torch.fx.experimental.symbolic_shapes")


class Deadlines(NamedTuple):
    """Seconds. `grace`: how long the others may go on once a first rank is done."""

    start: float = 120.0
    silence: float = 30.0
    grace: float = 5.0


class NotLoadedError(ToolError):
    """A subject could not be loaded in a process of its own."""

    def __init__(self, problem: str, *, for_an_import: bool = False) -> None:
        super().__init__(problem)
        self.for_an_import = for_an_import


class Ranks(Processes):
    """`size` processes, each with the subject loaded; in a process group unless a case is to make it."""

    def __init__(self, subject: Subject, size: int, *, joined: bool, deadlines: Deadlines) -> None:
        super().__init__(size, PRELOADED, _serve, subject, joined)
        self._deadlines = deadlines
        try:
            self.description = self._started()
        except BaseException:
            self.end()
            raise

    def ask(self, case: Case) -> Outcome:
        """What the ranks see of a case. Ranks that crashed or hung are not to be asked again."""
        self.send(case)
        return Outcome(*self.answers(self._deadlines.silence, self._deadlines.grace))

    def _started(self) -> Description:
        answers, broken = self.answers(self._deadlines.start, self._deadlines.start)
        for answer in answers:
            if isinstance(answer, _Failure):
                raise NotLoadedError(answer.text, for_an_import=answer.for_an_import)
        if broken:
            raise NotLoadedError(f"the process {broken}")
        description: Description = answers[0]
        return description


class _Failure(NamedTuple):
    """What loading raised."""

    text: str
    for_an_import: bool


def _serve(place: Place, requests: Connection, subject: Subject, joined: bool) -> None:
    """In the processes: load, then play whatever is asked for, until the pipe closes."""
    warnings.simplefilter("ignore")
    try:
        loaded = load(subject)
        if joined:
            place.join()
        requests.send(describe(loaded))
    except BaseException as error:
        (name, *_), message = in_names(error)
        requests.send(_Failure(f"{name}: {message}", isinstance(error, ImportError)))
        return
    actor = Actor(loaded, place.rank, place.join)
    while True:
        try:
            case = requests.recv()
        except EOFError:
            return
        requests.send(actor.play(case))
