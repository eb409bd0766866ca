# SPDX-License-Identifier: MIT
"""A file's definitions beside the known files: which one is nearest, how near, and what differs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .fingerprint import Definition, Known, Variant

# the share of a known file's statements, or of one telling definition's, that makes a file a copy
_OF_ALL, _OF_ONE = 0.5, 0.6
_ALIKE = 0.5  # of a definition under another name


class Difference(NamedTuple):
    """What is different about one definition."""

    name: str
    how: str  # "changed", "renamed", "missing" or "extra"
    detail: str
    line: int  # in the file; 0 for what is missing there


@dataclass(frozen=True)
class Comparison:
    """A file beside one known file."""

    variant: Variant
    pairs: dict[str, Definition]  # the known file's names, and what stands for each

    @property
    def similarity(self) -> float:
        """The share of common statements."""
        known = self.variant.definitions
        shared = sum(_shared(mine.known, known[name]) for name, mine in self.pairs.items())
        every = [*(mine.known for mine in self.pairs.values()), *known.values()]
        return 2 * shared / sum(len(one.statements.split()) for one in every)

    @property
    def is_a_copy(self) -> bool:
        """Whether so much of the known file, or of one telling definition, is in this one."""
        known = self.variant.definitions
        alike = [likeness(mine.known, known[name]) for name, mine in self.pairs.items() if known[name].tells]
        return bool(alike) and (self.similarity >= _OF_ALL or max(alike) >= _OF_ONE)

    @property
    def differences(self) -> list[Difference]:
        """What differs, without what the file has beyond the known one."""
        found = []
        for name, mine in self.pairs.items():
            known, line = self.variant.definitions[name], mine.node.lineno
            if mine.name != name:
                found.append(Difference(mine.name, "renamed", f"{name} in the original", line))
            if mine.known.hash != known.hash:
                found.append(Difference(mine.name, "changed", _change(mine, known), line))
        missing = [name for name in self.variant.definitions if name not in self.pairs]
        return found + [Difference(name, "missing", "", 0) for name in missing]


def nearest(found: Sequence[Definition], variants: Sequence[Variant]) -> Comparison | None:
    """The known file that a file, or a part of it, comes from; None if it comes from none."""
    copies = [one for one in (_compare(found, variant) for variant in variants) if one.is_a_copy]
    return min(copies, key=lambda one: (-one.similarity, len(one.differences), one.variant.name), default=None)


def _compare(found: Sequence[Definition], variant: Variant) -> Comparison:
    """Which definition stands for which: best the same code, then the same name, then the most alike."""
    known = variant.definitions
    scores = [(_score(mine, name, known[name]), mine, name) for mine in found for name in known]
    pairs: dict[str, Definition] = {}
    for score, mine, name in sorted(scores, key=lambda one: one[0], reverse=True):
        if score and name not in pairs and mine not in pairs.values():
            pairs[name] = mine
    return Comparison(variant, {name: pairs[name] for name in known if name in pairs})


def _score(mine: Definition, name: str, known: Known) -> float:
    alike = likeness(mine.known, known) if len(known.statements.split()) > 3 else 0.0
    return 4 * (mine.known.hash == known.hash) + 2 * (mine.name == name) + (alike if alike >= _ALIKE else 0)


def likeness(one: Known, other: Known) -> float:
    """The share of common statements of two definitions, from 0 to 1."""
    return 2 * _shared(one, other) / (_counted(one.statements) + _counted(other.statements)).total()


def _shared(one: Known, other: Known) -> int:
    return (_counted(one.statements) & _counted(other.statements)).total()


@lru_cache(maxsize=1024)
def _counted(statements: str) -> Counter[str]:
    return Counter(statements.split())


def _change(mine: Definition, known: Known) -> str:
    """What is changed: the lines that are new, how many statements are missing."""
    left = Counter(known.statements.split())
    new: set[int] = set()
    for statement, line in zip(mine.known.statements.split(), mine.lines, strict=True):
        left[statement] -= 1
        new |= {line} if left[statement] < 0 else set()
    said = ["not in the original: lines " + ", ".join(map(str, sorted(new)))] if new else []
    said += [f"statements missing: {(+left).total()}"] if +left else []
    return "; ".join(said) or "the same statements in another order, or with other variables"
