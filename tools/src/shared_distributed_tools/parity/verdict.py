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
from .play import Observation, Raised
from .truth import INPUT, SECOND, UPSTREAM, truth

Verdict = Literal["same", "better", "stricter", "different"]
_RETURNED = "returned"
_END, _EXCEPTION = "how it ends", "exception"
_NOT_RELIED_ON = {_END, _EXCEPTION, SECOND, INPUT, UPSTREAM}


class Outcome(NamedTuple):
    """What all ranks observed. `broken`: how the ranks ended where not all of them answered."""

    by_rank: tuple[Observation | None, ...]
    broken: str = ""

    @property
    def raised(self) -> list[Raised]:
        """What ranks raised."""
        return [one.raised for one in self.by_rank if one is not None and one.raised is not None]


class Finding(NamedTuple):
    """A case and its verdict; and of the part that says most: both sides in words, on which rank, whose is right."""

    case: Case
    verdict: Verdict
    part: str = ""
    old: str = ""
    new: str = ""
    rank: int | None = None
    right: str = ""


def judge(case: Case, old: Outcome, new: Outcome, alone: str) -> Finding:
    """Compare what all ranks observed, and where that differs ask who is right; `alone` as in the contract."""
    differences = [Finding(case, "different", *found) for found in _differences(old, new)]
    if not differences:
        missing = sorted({name for one in old.by_rank if one is not None for name in one.not_defined})
        said = ("undefined names", f"NameError: {', '.join(missing)}", "the same, with these names supplied")
        return Finding(case, "better", *said) if missing else Finding(case, "same")
    old_right, new_right = (_is_right(case, outcome, alone) for outcome in (old, new))
    relied_on = [one for one in differences if one.part not in _NOT_RELIED_ON]
    if new_right and not old_right and not relied_on:
        returned = [one for one in differences if one.old == _RETURNED]
        if case.raises and returned and not old.broken:
            return returned[0]._replace(verdict="stricter")
        return differences[0]._replace(verdict="better")
    right = ""
    if old_right != new_right and not case.depends_on_adapter:  # else another adapter's answer would be as right
        right = "the adapter's" if new_right else "the old file's"
    return (relied_on or differences)[0]._replace(right=right)


def _differences(old: Outcome, new: Outcome) -> Iterator[tuple[str, str, str, int | None]]:
    if old.broken or new.broken:
        if old.broken != new.broken:
            yield _END, _end_in_words(old), _end_in_words(new), None
        return
    for rank, (was, now) in enumerate(zip(old.by_rank, new.by_rank, strict=True)):
        assert was is not None
        assert now is not None
        for found in _on_a_rank(was, now):
            yield *found, rank if len(old.by_rank) > 1 else None


def _on_a_rank(old: Observation, new: Observation) -> Iterator[tuple[str, str, str]]:
    if old.raised or new.raised:
        if not (old.raised and new.raised and is_same_error(old.raised, new.raised)):
            yield _EXCEPTION, _raised_in_words(old.raised), _raised_in_words(new.raised)
        return
    for part in dict.fromkeys([*old.parts, *new.parts]):
        was, now = old.parts.get(part, "not given"), new.parts.get(part, "not given")
        if was != now:
            yield part, *_pair_in_words(was, now)


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
    if outcome.broken or case.raises:
        return not outcome.broken and len(outcome.raised) == len(outcome.by_rank)
    pairs = [(truth(case, rank, alone), observed) for rank, observed in enumerate(outcome.by_rank)]
    return not outcome.raised and all(right and seen and right.items() <= seen.parts.items() for right, seen in pairs)


def _end_in_words(outcome: Outcome) -> str:
    raised = outcome.raised[0] if outcome.raised else None
    if not outcome.broken:
        return _raised_in_words(raised)
    return outcome.broken + (f", after another rank raised {raised.name}" if raised and outcome.broken == HUNG else "")


def _raised_in_words(raised: Raised | None) -> str:
    if raised is None:
        return _RETURNED
    return f"{raised.name} in {raised.step}: {_shortened(raised.message)}".removesuffix(": ")


def _pair_in_words(old: str, new: str) -> tuple[str, str]:
    """Two texts that differ. Of two tensors of one shape, the first place at which they do."""
    (head, _, was), (other, _, now) = old.partition(": "), new.partition(": ")
    if " tensor " in head and head == other:
        at, pair = next(
            (at, pair) for at, pair in enumerate(zip(was.split(), now.split(), strict=True)) if len({*pair}) > 1
        )
        return f"{head}, number {at}: {pair[0]}", f"{head}, number {at}: {pair[1]}"
    return _shortened(old), _shortened(new)


def _shortened(text: str) -> str:
    """On one line, and not too long for a report."""
    line = " ".join(text.split())
    return line if len(line) <= 140 else f"{line[:139]}…"
