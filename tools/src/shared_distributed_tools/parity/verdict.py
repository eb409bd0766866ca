# SPDX-License-Identifier: MIT
"""Two outcomes of one case: the same, better than it was, or different.

Where both sides return, their outputs, sizes and gradients must agree, whoever is right: somebody may rely on what
the old file gives, a mean where others take the sum. Better is what nobody can rely on: the old file raises where
the adapter gives the right answer, crashes, hangs, writes to memory that is not its own, or has a wrong second
derivative. Stricter is what the contract announces: the ranks' calls disagree, the old file returned something on some
rank all the same, and the adapter raises on every rank.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from ..ranks import HUNG
from .cases import Case
from .observed import Observation, Outcome, Raised, pair_in_words
from .truth import INPUT, SECOND, UPSTREAM, truth

_LONG = 140  # characters of an exception's message in a report
_RETURNED = "returned"
_NAMES, _END, _EXCEPTION = "undefined names", "how it ends", "exception"
_NOT_RELIED_ON = {_END, _EXCEPTION, SECOND, INPUT, UPSTREAM}


class Verdict(Enum):
    """How a case ends."""

    SAME = "same"
    BETTER = "better"
    STRICTER = "stricter"
    DIFFERENT = "different"


class Difference(NamedTuple):
    """A part that differs, both sides of it in words, and on which rank."""

    part: str
    old: str
    new: str
    rank: int | None = None

    @property
    def is_an_end(self) -> bool:
        """Whether it is about how a side ended; else both returned, and a value differs."""
        return self.part in (_NAMES, _END, _EXCEPTION)

    @property
    def kind(self) -> tuple[str, ...]:
        """What differences have in common that say the same thing of different cases."""
        return (self.part, self.old, self.new.partition(":")[0]) if self.is_an_end else (self.part,)


class Finding(NamedTuple):
    """A case, its verdict, and why."""

    case: Case
    verdict: Verdict
    difference: Difference = Difference("", "", "")  # the one that says most
    right: str = ""  # where values differ: whose is right


def judge(case: Case, old: Outcome, new: Outcome, alone: str) -> Finding:
    """Compare what all ranks observed, and where that differs ask who is right; `alone` as in the contract."""
    differences = _differences(old, new)
    if differences:
        old_right, new_right = (_is_right(case, outcome, alone) for outcome in (old, new))
        relied_on = [difference for difference in differences if difference.part not in _NOT_RELIED_ON]
        if new_right and not old_right and not relied_on:
            returned = [one for one in differences if one.old == _RETURNED]
            if case.may_raise_only and returned and not old.broken:
                return Finding(case, Verdict.STRICTER, returned[0])
            return Finding(case, Verdict.BETTER, differences[0])
        whose = {(False, True): "the adapter's", (True, False): "the old file's"}.get((old_right, new_right), "")
        if case.depends_on_adapter:  # another adapter's answer would be as right
            whose = ""
        return Finding(case, Verdict.DIFFERENT, (relied_on or differences)[0], whose)
    missing = sorted({name for observed in old.by_rank if observed is not None for name in observed.not_defined})
    if missing:
        names = Difference(_NAMES, f"NameError: {', '.join(missing)}", "the same, with these names supplied")
        return Finding(case, Verdict.BETTER, names)
    return Finding(case, Verdict.SAME)


def _differences(old: Outcome, new: Outcome) -> list[Difference]:
    if old.broken or new.broken:
        same = old.broken == new.broken
        return [] if same else [Difference(_END, _whole_in_words(old), _whole_in_words(new))]
    pairs = enumerate(zip(old.by_rank, new.by_rank, strict=True))
    found = [one for rank, pair in pairs for one in _differences_on(rank, *pair)]
    return found if len(old.by_rank) > 1 else [one._replace(rank=None) for one in found]


def _differences_on(rank: int, old: Observation | None, new: Observation | None) -> Iterator[Difference]:
    if old is None or new is None:
        return  # only where something is broken
    if old.raised or new.raised:
        if not (old.raised and new.raised and is_same_error(old.raised, new.raised)):
            yield Difference(_EXCEPTION, _end_in_words(old), _end_in_words(new), rank)
        return
    for part in dict.fromkeys([*old.parts, *new.parts]):
        was, now = old.parts.get(part), new.parts.get(part)
        if was != now:
            yield Difference(part, *pair_in_words(was, now), rank)


def is_same_error(old: Raised, new: Raised) -> bool:
    """Whether code that handles the old one handles the new one.

    A subclass will do, with a message of its own; of one and the same class the messages must be alike as well, but
    for numbers.
    """
    if old.step != new.step or old.name not in new.bases:
        return False
    return old.name != new.name or _kind_of_message(old.message) == _kind_of_message(new.message)


def _kind_of_message(message: str) -> str:
    first_line = message.strip().partition("\n")[0]
    return re.sub(r"0x[0-9a-f]+|\d+", "N", first_line)


def _is_right(case: Case, outcome: Outcome, alone: str) -> bool:
    """Whether every rank gives the right answer; False where it is not known."""
    if outcome.broken:
        return False
    if case.may_raise_only:
        return all(observed is not None and observed.raised is not None for observed in outcome.by_rank)
    for rank, observed in enumerate(outcome.by_rank):
        right = truth(case, rank, alone)
        if right is None or observed is None or observed.raised is not None:
            return False
        if any(observed.parts.get(part) != value for part, value in right.items()):
            return False
    return True


def _whole_in_words(outcome: Outcome) -> str:
    if not outcome.broken:
        return _end_in_words(outcome.by_rank[0])
    raised = [observed.raised for observed in outcome.by_rank if observed is not None and observed.raised is not None]
    after = f", after another rank raised {raised[0].name}" if raised and outcome.broken == HUNG else ""
    return f"{outcome.broken}{after}"


def _end_in_words(observed: Observation | None) -> str:
    if observed is None or observed.raised is None:
        return _RETURNED
    message = " ".join(observed.raised.message.split())
    message = message if len(message) <= _LONG else message[: _LONG - 1] + "…"
    return f"{observed.raised.name} in {observed.raised.step}" + (f": {message}" if message else "")
