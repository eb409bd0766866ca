# SPDX-License-Identifier: MIT
"""Two outcomes of one case: the same, better than it was, stricter, or different.

Where both sides return, their outputs, sizes and gradients must agree, whoever is right: somebody may rely on what
the old file gives, a mean where others take the sum. Better is what nobody can rely on: the old file raises where
the adapter gives the right answer, crashes, hangs, writes to memory that is not its own, or has a wrong second
derivative. Stricter is what the contract announces: the ranks' calls disagree, the old file returned something on some
rank all the same, and the adapter raises on every rank.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

from .cases import Case
from .play import INPUT, SECOND, UPSTREAM, Observation, truth

Verdict = Literal["same", "better", "stricter", "different"]
_RETURNED = "returned"
_END = "how it ends"
_shortened = partial(textwrap.shorten, width=160, placeholder="…")
_NOT_RELIED_ON = {_END, SECOND, INPUT, UPSTREAM}


class Finding(NamedTuple):
    """A case and its verdict; and of the part that says most: both sides in words, on which rank, whose is right."""

    case: Case
    verdict: Verdict
    part: str = ""
    old: str = ""
    new: str = ""
    rank: int | None = None
    right: str = ""


def judge(case: Case, old: Sequence[Observation], new: Sequence[Observation], alone: str) -> Finding:
    """Compare what all ranks observed, and where that differs ask who is right; `alone` as in the contract."""
    differences = [Finding(case, "different", *found) for found in _differences(old, new)]
    if not differences:
        missing = sorted({name for one in old for name in one.not_defined})
        said = ("undefined names", f"NameError: {', '.join(missing)}", "the same, with these names supplied")
        return Finding(case, "better", *said) if missing else Finding(case, "same")
    old_right, new_right = (_is_right(case, observed, alone) for observed in (old, new))
    relied_on = [one for one in differences if one.part not in _NOT_RELIED_ON]
    if new_right and not old_right and not relied_on:
        returned = [one for one in differences if one.old == _RETURNED]
        if case.raises and returned:
            return returned[0]._replace(verdict="stricter")
        return differences[0]._replace(verdict="better")
    right = ""
    if old_right != new_right and not case.depends_on_adapter:  # else another adapter's answer would be as right
        right = "the adapter's" if new_right else "the old file's"
    return (relied_on or differences)[0]._replace(right=right)


def _is_right(case: Case, by_rank: Sequence[Observation], alone: str) -> bool:
    """Whether every rank gives the right answer; False where it is not known."""
    if case.raises:
        return all(observed.raised for observed in by_rank)
    pairs = [(truth(case, rank, alone), observed) for rank, observed in enumerate(by_rank)]
    return all(right and not seen.raised and right.items() <= seen.parts.items() for right, seen in pairs)


def _differences(old: Sequence[Observation], new: Sequence[Observation]) -> Iterator[tuple[str, str, str, int | None]]:
    for rank, (was, now) in enumerate(zip(old, new, strict=True)):
        at = None if was.broken or now.broken or len(old) == 1 else rank
        if not is_same_end(was, now):
            yield _END, _end_in_words(was), _end_in_words(now), at
        elif not was.raised:
            for part in dict.fromkeys([*was.parts, *now.parts]):
                texts = was.parts.get(part, "not given"), now.parts.get(part, "not given")
                if len({*texts}) > 1:
                    yield part, *_pair_in_words(*texts), at


def is_same_end(old: Observation, new: Observation) -> bool:
    """Whether both end the same way: code that handles the old exception must handle the new one too.

    It must come at the same step. A subclass will do, with a message of its own; of one and the same class the
    messages must be alike as well, but for numbers.
    """
    if not (old.raised and new.raised):
        return (old.raised, old.broken) == (new.raised, new.broken)
    one, other = (re.sub(r"0x[0-9a-f]+|\d+", "N", each.message.strip().partition("\n")[0]) for each in (old, new))
    return old.raised[0] in new.raised[1:] or (old.raised[0] == new.raised[0] and one == other)


def _end_in_words(observed: Observation) -> str:
    if observed.broken:
        return f"{observed.broken}, {observed.message}".removesuffix(", ")
    return _shortened(f"{observed.raised[0]}: {observed.message}".removesuffix(": ")) if observed.raised else _RETURNED


def _pair_in_words(old: str, new: str) -> tuple[str, str]:
    """Two texts that differ. Of two tensors of one shape, the first place at which they do."""
    (head, _, was), (other, _, now) = old.partition(": "), new.partition(": ")
    if " tensor " in head and head == other:
        pairs = enumerate(zip(was.split(), now.split(), strict=True))
        at, (one, another) = next((at, pair) for at, pair in pairs if len({*pair}) > 1)
        return f"{head}, number {at}: {one}", f"{head}, number {at}: {another}"
    return _shortened(old), _shortened(new)
