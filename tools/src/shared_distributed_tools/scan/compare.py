# SPDX-License-Identifier: MIT
"""A file's definitions beside the known files: which one is nearest, how near, and what differs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .fingerprint import Definition, Known

# the share of a known file's statements, or of one telling definition's, that makes a file a copy
_OF_ALL, _OF_ONE = 0.5, 0.6
_ALIKE = 0.5  # of a definition under another name


class Difference(NamedTuple):
    """What is different about one definition."""

    name: str
    how: str  # "changed", "renamed", "missing" or "extra"
    detail: str = ""
    line: int = 0  # in the file; 0 for what is missing there


class Comparison(NamedTuple):
    """A copy beside its original."""

    adapter: str
    similarity: float  # the share of common statements
    differences: list[Difference]  # without what the file has beyond the original
    definitions: list[Definition]  # those that stand for one of the original


def nearest(found: Sequence[Definition], originals: dict[str, dict[str, Known]]) -> Comparison | None:
    """The known file that a file, or a part of it, comes from; None if it comes from none."""
    copies = [one for adapter, known in originals.items() for one in _compare(found, adapter, known)]
    return min(copies, key=lambda one: (-one.similarity, len(one.differences), one.adapter), default=None)


def _compare(found: Sequence[Definition], adapter: str, known: dict[str, Known]) -> Iterator[Comparison]:
    """A comparison, if so much of the known file, or of one telling definition, is in this one."""
    pairs = _paired(found, known)
    alike = [_likeness([mine.known], [known[name]]) for name, mine in pairs.items() if known[name].tells]
    similarity = _likeness([mine.known for mine in pairs.values()], known.values())
    if alike and (similarity >= _OF_ALL or max(alike) >= _OF_ONE):
        differences = [one for name in known for one in _differences(name, known[name], pairs.get(name))]
        yield Comparison(adapter, similarity, differences, [pairs[name] for name in known if name in pairs])


def _paired(found: Sequence[Definition], known: dict[str, Known]) -> dict[str, Definition]:
    """Which definition stands for which: best the same code, then the same name, then the most alike."""
    scores = [(_score(mine, name, known[name]), mine, name) for mine in found for name in known]
    pairs: dict[str, Definition] = {}
    for score, mine, name in sorted(scores, key=lambda one: one[0], reverse=True):
        if score and name not in pairs and mine not in pairs.values():
            pairs[name] = mine
    return pairs


def _score(mine: Definition, name: str, known: Known) -> float:
    alike = _likeness([mine.known], [known]) if known.statements.count(" ") > 2 else 0.0
    return 4 * (mine.known.hash == known.hash) + 2 * (mine.name == name) + (alike if alike >= _ALIKE else 0)


def _likeness(some: Iterable[Known], others: Iterable[Known]) -> float:
    """The share of common statements, from 0 to 1."""
    one, other = (Counter(" ".join(known.statements for known in all_).split()) for all_ in (some, others))
    return 2 * (one & other).total() / (one + other).total()


def _differences(name: str, known: Known, mine: Definition | None) -> Iterator[Difference]:
    if mine is None:
        yield Difference(name, "missing")
        return
    if mine.name != name:
        yield Difference(mine.name, "renamed", f"{name} in the original", mine.node.lineno)
    if mine.known.hash != known.hash:
        yield Difference(mine.name, "changed", _change(mine, known), mine.node.lineno)


def _change(mine: Definition, known: Known) -> str:
    """What is changed: the lines that are new, how many statements are missing."""
    statements = mine.known.statements.split()
    new = {line for one, line in zip(statements, mine.lines, strict=True) if one not in known.statements}
    missing = [one for one in known.statements.split() if one not in statements]
    said = ["not in the original: lines " + ", ".join(map(str, sorted(new)))] if new else []
    said += [f"statements missing: {len(missing)}"] if missing else []
    return "; ".join(said) or "the same statements in another order or number, or with other variables"
