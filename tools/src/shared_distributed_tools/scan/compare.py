# SPDX-License-Identifier: MIT
"""A file's definitions beside the known files: which one is nearest, how near, and what differs."""

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
    pairs: tuple[Pair, ...]
    differences: tuple[Difference, ...]  # without what the file has beyond the known one
    similarity: float  # the share of common statements

    @property
    def is_near(self) -> bool:
        """Whether so much of the known file is in this one that its adapter may do."""
        return self._shares(*_NEAR)

    @property
    def is_a_copy(self) -> bool:
        """Whether enough of the known file is in this one to say where that comes from."""
        return self._shares(*_A_COPY)

    def _shares(self, of_all: float, of_one: float) -> bool:
        alike = [likeness(pair.mine.known, pair.known) for pair in self.pairs if pair.known.tells]
        return bool(alike) and (self.similarity >= of_all or max(alike) >= of_one)


def nearest(found: Sequence[Definition], variants: Sequence[Variant]) -> Comparison | None:
    """The known file that a file, or a part of it, comes from; None if it comes from none."""
    comparisons = [compare(found, variant) for variant in variants]
    copies = [comparison for comparison in comparisons if comparison.is_a_copy]
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
    return Comparison(variant, pairs, tuple(differences), 2 * shared / total)


def _paired(found: Iterable[Definition], variant: Variant) -> tuple[Pair, ...]:
    """Which definition stands for which: first the same code, then the same name, then the most alike."""
    free_mine, free_known = list(found), dict(variant.definitions)
    pairs: list[Pair] = []

    def pair_up(score: Callable[[Definition, str, Known], float]) -> None:
        scored = [(score(mine, name, known), mine, name) for mine in free_mine for name, known in free_known.items()]
        for value, mine, name in sorted(scored, key=lambda one: -one[0]):
            if value > 0 and mine in free_mine and name in free_known:
                pairs.append(Pair(mine, name, free_known.pop(name)))
                free_mine.remove(mine)

    pair_up(lambda mine, name, known: (mine.known.hash == known.hash) * (1 + (mine.name == name)))
    pair_up(lambda mine, name, known: float(mine.name == name))
    pair_up(lambda mine, name, known: _likeness_of_others(mine, known))
    order = list(variant.definitions)
    return tuple(sorted(pairs, key=lambda pair: order.index(pair.name)))


def _likeness_of_others(mine: Definition, known: Known) -> float:
    if len(known.statements) < 4 or isinstance(mine.node, ast.ClassDef) == bool(known.signature):
        return 0.0
    found = likeness(mine.known, known)
    return found if found >= _ALIKE else 0.0


def likeness(one: Known, other: Known) -> float:
    """The share of common statements of two definitions, from 0 to 1."""
    return 2 * _shared(one, other) / (len(one.statements) + len(other.statements))


def _shared(one: Known, other: Known) -> int:
    return (Counter(one.statements) & Counter(other.statements)).total()


def _differences(pair: Pair) -> list[Difference]:
    mine, name, known = pair
    line = mine.node.lineno
    renamed = [Difference(mine.name, "renamed", f"{name} in the original", line)] if mine.name != name else []
    if mine.known.hash == known.hash:
        return renamed
    return [*renamed, Difference(mine.name, "changed", "; ".join(_changes(pair)), line)]


def _changes(pair: Pair) -> list[str]:
    mine, _, known = pair
    said = []
    if mine.known.signature != known.signature:
        said.append(f"takes ({mine.known.signature}), in the original ({known.signature})")
    left = Counter(known.statements)
    new: list[int] = []
    for statement, line in zip(mine.known.statements, mine.lines, strict=True):
        left[statement] -= 1
        new += [line] if left[statement] < 0 else []
    gone = sum(count for count in left.values() if count > 0)
    if new:
        lines = sorted(set(new))
        shown = ", ".join(map(str, lines[:6])) + (", …" if len(lines) > 6 else "")
        said.append(f"not in the original: line{'s' * (len(lines) > 1)} {shown}")
    if gone:
        said.append(f"missing: {gone} statement{'s' * (gone > 1)}")
    return said or ["the same statements in another order, or with other variables"]
