# SPDX-License-Identifier: MIT
"""A file's definitions beside those of a known file: which stands for which, how near they are, what differs."""

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


def paired(found: Sequence[Definition], known: dict[str, Known]) -> dict[str, Definition]:
    """The definitions that stand for those of a known file: best the same code, then the same name, or the most alike.

    None, unless so much of the known file, or of one telling definition, is in this one.
    """
    scores = [(_score(mine, name, known[name]), mine, name) for mine in found for name in known]
    pairs: dict[str, Definition] = {}
    for score, mine, name in sorted(scores, key=lambda one: one[0], reverse=True):
        if score and name not in pairs and mine not in pairs.values():
            pairs[name] = mine
    alike = [_likeness([mine.known], [known[name]]) for name, mine in pairs.items() if known[name].tells]
    is_copy = alike and (similarity(pairs, known) >= _OF_ALL or max(alike) >= _OF_ONE)
    return {name: pairs[name] for name in known if name in pairs} if is_copy else {}


def similarity(pairs: dict[str, Definition], known: dict[str, Known]) -> float:
    """The share of common statements, from 0 to 1."""
    return _likeness([mine.known for mine in pairs.values()], known.values())


def differences(pairs: dict[str, Definition], known: dict[str, Known]) -> Iterator[Difference]:
    """What differs, without what the file has beyond the known one."""
    for name, mine in pairs.items():
        if mine.name != name:
            yield Difference(mine.name, "renamed", f"{name} in the original", mine.node.lineno)
        if mine.known.hash != known[name].hash:
            yield Difference(mine.name, "changed", _change(mine, known[name]), mine.node.lineno)
    yield from (Difference(name, "missing") for name in known if name not in pairs)


def _score(mine: Definition, name: str, known: Known) -> float:
    alike = _likeness([mine.known], [known]) if known.statements.count(" ") > 2 else 0.0
    return 4 * (mine.known.hash == known.hash) + 2 * (mine.name == name) + (alike if alike >= _ALIKE else 0)


def _likeness(some: Iterable[Known], others: Iterable[Known]) -> float:
    one, other = (Counter(" ".join(known.statements for known in all_).split()) for all_ in (some, others))
    return 2 * (one & other).total() / (one + other).total()


def _change(mine: Definition, known: Known) -> str:
    """What is changed: the lines that are new, how many statements are missing."""
    statements = mine.known.statements.split()
    new = {line for one, line in zip(statements, mine.lines, strict=True) if one not in known.statements}
    missing = [one for one in known.statements.split() if one not in statements]
    said = ["not in the original: lines " + ", ".join(map(str, sorted(new)))] if new else []
    said += [f"statements missing: {len(missing)}"] if missing else []
    return "; ".join(said) or "the same statements in another order or number, or with other variables"
