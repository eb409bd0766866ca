# SPDX-License-Identifier: MIT
"""A file's definitions beside the known files: which one is nearest, how near, and what differs."""

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .fingerprint import Definition, Known, Variant

# the share of a known file's statements, or of one telling definition's, that makes a file a copy, and a near one
_A_COPY = (0.45, 0.6)
_NEAR = (0.6, 0.8)
_ALIKE = 0.5  # of a definition under another name


class Difference(NamedTuple):
    """What is different about one definition."""

    name: str
    how: str  # "changed", "renamed", "missing" or "extra"
    detail: str
    line: int  # in the file; 0 for what is missing there


class Pair(NamedTuple):
    """A definition of a file, and the known one that it stands for."""

    mine: Definition
    name: str  # of the known one
    known: Known


@dataclass(frozen=True)
class Comparison:
    """A file beside one known file."""

    variant: Variant
    pairs: list[Pair]
    differences: list[Difference]  # without what the file has beyond the known one
    similarity: float  # the share of common statements

    def is_near(self, of_all: float = _NEAR[0], of_one: float = _NEAR[1]) -> bool:
        """Whether so much of the known file, or of one telling definition, is in this one that its adapter may do."""
        alike = [likeness(pair.mine.known, pair.known) for pair in self.pairs if pair.known.tells]
        return bool(alike) and (self.similarity >= of_all or max(alike) >= of_one)


def resembles(found: Sequence[Definition], variants: Sequence[Variant]) -> bool:
    """Whether any of some definitions shares a third of its statements with a telling one."""
    telling = [known for variant in variants for known in variant.definitions.values() if known.tells]
    return any(likeness(one.known, known) > 1 / 3 for one in found for known in telling)


def nearest(found: Sequence[Definition], variants: Sequence[Variant]) -> Comparison | None:
    """The known file that a file, or a part of it, comes from; None if it comes from none."""
    copies = [one for one in (compare(found, variant) for variant in variants) if one.is_near(*_A_COPY)]
    return min(copies, key=lambda one: (-one.similarity, len(one.differences), one.variant.name), default=None)


def compare(found: Sequence[Definition], variant: Variant) -> Comparison:
    """A file's definitions beside one known file's."""
    pairs = _paired(found, variant)
    differences = [difference for pair in pairs for difference in _differences(pair)]
    paired = {pair.name for pair in pairs}
    differences += [Difference(name, "missing", "", 0) for name in variant.definitions if name not in paired]
    shared = sum(_shared(pair.mine.known, pair.known) for pair in pairs)
    total = sum(len(pair.mine.known.statements) for pair in pairs)
    total += sum(len(known.statements) for known in variant.definitions.values())
    return Comparison(variant, pairs, differences, 2 * shared / total)


def _paired(found: Sequence[Definition], variant: Variant) -> list[Pair]:
    """Which definition stands for which: best the same code, then the same name, then the most alike."""
    every = [Pair(mine, name, known) for mine in found for name, known in variant.definitions.items()]
    pairs: dict[str, Pair] = {}
    taken: set[Definition] = set()
    for pair in sorted(every, key=_score, reverse=True):
        if _score(pair) and pair.mine not in taken and pair.name not in pairs:
            pairs[pair.name] = pair
            taken.add(pair.mine)
    return [pairs[name] for name in variant.definitions if name in pairs]


def _score(pair: Pair) -> float:
    mine, name, known = pair
    is_comparable = len(known.statements) > 3 and isinstance(mine.node, ast.ClassDef) != bool(known.signature)
    alike = likeness(mine.known, known) if is_comparable else 0.0
    return 4 * (mine.known.hash == known.hash) + 2 * (mine.name == name) + (alike if alike >= _ALIKE else 0)


def likeness(one: Known, other: Known) -> float:
    """The share of common statements of two definitions, from 0 to 1."""
    return 2 * _shared(one, other) / (len(one.statements) + len(other.statements))


def _shared(one: Known, other: Known) -> int:
    return (Counter(one.statements) & Counter(other.statements)).total()


def _differences(pair: Pair) -> list[Difference]:
    mine, name, known = pair
    found = []
    if mine.name != name:
        found.append(Difference(mine.name, "renamed", f"{name} in the original", mine.node.lineno))
    if mine.known.hash != known.hash:
        found.append(Difference(mine.name, "changed", _change(mine, known), mine.node.lineno))
    return found


def _change(mine: Definition, known: Known) -> str:
    """What is changed: the signature, the lines that are new, how many statements are missing."""
    said = []
    if mine.known.signature != known.signature:
        said.append(f"takes ({mine.known.signature}), in the original ({known.signature})")
    left = Counter(known.statements)
    new: set[int] = set()
    for statement, line in zip(mine.known.statements, mine.lines, strict=True):
        left[statement] -= 1
        new |= {line} if left[statement] < 0 else set()
    missing = sum(count for count in left.values() if count > 0)
    if new:
        said.append("not in the original: lines " + ", ".join(map(str, sorted(new))))
    if missing:
        said.append(f"statements missing: {missing}")
    return "; ".join(said) or "the same statements in another order, or with other variables"
