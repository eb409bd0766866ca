# SPDX-License-Identifier: MIT
"""Two outcomes of one case: the same, better than it was, stricter, or different.

Where both sides return, their outputs, sizes and gradients must agree, whoever is right: somebody may rely on what
the old file gives, a mean where others take the sum. Better is what nobody can rely on: the old file raises where
the adapter gives the right answer, crashes, hangs, writes to memory that is not its own, or has a wrong second
derivative. Stricter is what the contract announces: the ranks' calls disagree, the old file returned something on some
rank all the same, and the adapter raises on every rank.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ..ranks import HUNG
from .cases import Case
from .observed import Observation, Outcome, Raised, pair_in_words, shortened
from .truth import INPUT, SECOND, UPSTREAM, truth

Verdict = Literal["same", "better", "stricter", "different"]
_LONG = 140  # characters of an exception's message in a report
_RETURNED = "returned"
_NAMES, _END, _EXCEPTION = "undefined names", "how it ends", "exception"
_NOT_RELIED_ON = {_END, _EXCEPTION, SECOND, INPUT, UPSTREAM}


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


class Finding(NamedTuple):
    """A case, its verdict, and why."""

    case: Case
    verdict: Verdict
    difference: Difference = Difference("", "", "")  # the one that says most
    right: str = ""  # where values differ: whose is right


def judge(case: Case, old: Outcome, new: Outcome, alone: str) -> Finding:
    """Compare what all ranks observed, and where that differs ask who is right; `alone` as in the contract."""
    differences = _differences(old, new)
    if not differences:
        missing = sorted({name for one in old.by_rank if one is not None for name in one.not_defined})
        if not missing:
            return Finding(case, "same")
        said = f"NameError: {', '.join(missing)}"
        return Finding(case, "better", Difference(_NAMES, said, "the same, with these names supplied"))
    old_right, new_right = (_is_right(case, outcome, alone) for outcome in (old, new))
    relied_on = [difference for difference in differences if difference.part not in _NOT_RELIED_ON]
    if new_right and not old_right and not relied_on:
        returned = [one for one in differences if one.old == _RETURNED]
        if case.may_raise_only and returned and not old.broken:
            return Finding(case, "stricter", returned[0])
        return Finding(case, "better", differences[0])
    right = ""
    if old_right != new_right and not case.depends_on_adapter:  # else another adapter's answer would be as right
        right = "the adapter's" if new_right else "the old file's"
    return Finding(case, "different", (relied_on or differences)[0], right)


def _differences(old: Outcome, new: Outcome) -> list[Difference]:
    if old.broken or new.broken:
        return [] if old.broken == new.broken else [Difference(_END, _end_in_words(old), _end_in_words(new))]
    ranks: list[int | None] = [*range(len(old.by_rank))] if len(old.by_rank) > 1 else [None]
    by_rank = zip(ranks, old.by_rank, new.by_rank, strict=True)
    return [Difference(*found, rank) for rank, was, now in by_rank if was and now for found in _on_a_rank(was, now)]


def _on_a_rank(old: Observation, new: Observation) -> Iterator[tuple[str, str, str]]:
    if old.raised and new.raised and is_same_error(old.raised, new.raised):
        return
    if old.raised or new.raised:
        yield _EXCEPTION, _raised_in_words(old.raised), _raised_in_words(new.raised)
        return
    for part in dict.fromkeys([*old.parts, *new.parts]):
        was, now = old.parts.get(part), new.parts.get(part)
        if was != now:
            yield part, *pair_in_words(was, now)


def is_same_error(old: Raised, new: Raised) -> bool:
    """Whether code that handles the old one handles the new one.

    A subclass will do, with a message of its own; of one and the same class the messages must be alike as well, but
    for numbers.
    """
    if old.step != new.step or old.name not in new.bases:
        return False
    one, other = (re.sub(r"0x[0-9a-f]+|\d+", "N", raised.message.strip().partition("\n")[0]) for raised in (old, new))
    return old.name != new.name or one == other


def _is_right(case: Case, outcome: Outcome, alone: str) -> bool:
    """Whether every rank gives the right answer; False where it is not known."""
    if outcome.broken:
        return False
    if case.may_raise_only:
        return len(outcome.raised) == len(outcome.by_rank)
    pairs = [(truth(case, rank, alone), observed) for rank, observed in enumerate(outcome.by_rank)]
    return not outcome.raised and all(
        right is not None and observed is not None and right.items() <= observed.parts.items()
        for right, observed in pairs
    )


def _end_in_words(outcome: Outcome) -> str:
    raised = outcome.raised[0] if outcome.raised else None
    if not outcome.broken:
        return _raised_in_words(raised)
    return outcome.broken + (f", after another rank raised {raised.name}" if raised and outcome.broken == HUNG else "")


def _raised_in_words(raised: Raised | None) -> str:
    if raised is None:
        return _RETURNED
    return f"{raised.name} in {raised.step}: {shortened(raised.message, _LONG)}".removesuffix(": ")
