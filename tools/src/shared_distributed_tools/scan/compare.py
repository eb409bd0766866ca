# SPDX-License-Identifier: MIT
"""A file's definitions beside the known files: which one is nearest, how near, and what differs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .fingerprint import Definition, Known, Variant

# the share of a known file's statements, or of one telling definition's, that makes a file a copy, and a near one
_A_COPY = (0.45, 0.6)
_NEAR = (0.6, 0.8)
_ALIKE = 0.5  # of a definition under another name
_HINT = 1 / 3  # of a telling definition: below it a file is not looked at more closely


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
    similarity: float  # the share of common statements

    def is_near(self, of_all: float = _NEAR[0], of_one: float = _NEAR[1]) -> bool:
        """Whether so much of the known file, or of one telling definition, is in this one that its adapter may do."""
        known = self.variant.definitions
        alike = [likeness(mine.known, known[name]) for name, mine in self.pairs.items() if known[name].tells]
        return bool(alike) and (self.similarity >= of_all or max(alike) >= of_one)

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


def resembles(found: Sequence[Definition], variants: Sequence[Variant]) -> bool:
    """Whether any of some definitions is a little like a telling one."""
    telling = [known for variant in variants for known in variant.definitions.values() if known.tells]
    return any(likeness(one.known, known) > _HINT for one in found for known in telling)


def nearest(found: Sequence[Definition], variants: Sequence[Variant]) -> Comparison | None:
    """The known file that a file, or a part of it, comes from; None if it comes from none."""
    copies = [one for one in (_compare(found, variant) for variant in variants) if one.is_near(*_A_COPY)]
    return min(copies, key=lambda one: (-one.similarity, len(one.differences), one.variant.name), default=None)


def _compare(found: Sequence[Definition], variant: Variant) -> Comparison:
    """Which definition stands for which: best the same code, then the same name, then the most alike."""
    known = variant.definitions
    scores = [(_score(mine, name, known[name]), mine, name) for mine in found for name in known]
    pairs: dict[str, Definition] = {}
    for score, mine, name in sorted(scores, key=lambda one: one[0], reverse=True):
        if score and name not in pairs and mine not in pairs.values():
            pairs[name] = mine
    shared = sum(_shared(mine.known, known[name]).total() for name, mine in pairs.items())
    every = [*(mine.known for mine in pairs.values()), *known.values()]
    similarity = 2 * shared / sum(len(one.statements.split()) for one in every)
    return Comparison(variant, {name: pairs[name] for name in known if name in pairs}, similarity)


def _score(mine: Definition, name: str, known: Known) -> float:
    is_comparable = len(known.statements.split()) > 3 and bool(mine.known.signature) == bool(known.signature)
    alike = likeness(mine.known, known) if is_comparable else 0.0
    return 4 * (mine.known.hash == known.hash) + 2 * (mine.name == name) + (alike if alike >= _ALIKE else 0)


def likeness(one: Known, other: Known) -> float:
    """The share of common statements of two definitions, from 0 to 1."""
    return 2 * _shared(one, other).total() / len([*one.statements.split(), *other.statements.split()])


def _shared(one: Known, other: Known) -> Counter[str]:
    return Counter(one.statements.split()) & Counter(other.statements.split())


def _change(mine: Definition, known: Known) -> str:
    """What is changed: the signature, the lines that are new, how many statements are missing."""
    said = []
    if mine.known.signature != known.signature:
        said.append(f"takes ({mine.known.signature}), in the original ({known.signature})")
    left = Counter(known.statements.split())
    new: set[int] = set()
    for statement, line in zip(mine.known.statements.split(), mine.lines, strict=True):
        left[statement] -= 1
        new |= {line} if left[statement] < 0 else set()
    if new:
        said.append("not in the original: lines " + ", ".join(map(str, sorted(new))))
    missing = (+left).total()
    if missing:
        said.append(f"statements missing: {missing}")
    return "; ".join(said) or "the same statements in another order, or with other variables"
