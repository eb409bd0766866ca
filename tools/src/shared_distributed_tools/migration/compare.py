# SPDX-License-Identifier: MIT
"""A file's definitions against the known variants: which one is nearest, how near, and what differs."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .definitions import Definition, Parsed
from .fingerprints import KnownDefinition, Variant, outside

# how much of a variant, or of one of its telling definitions, has to be there: to speak of a copy, and of a near one
_A_COPY = (0.45, 0.6)
_NEAR = (0.6, 0.8)
_ENOUGH_TO_PAIR = 0.5  # of a definition under another name
_ENOUGH_TO_LOOK = 0.3


class Difference(NamedTuple):
    """What is different about one definition."""

    name: str
    how: str  # changed, missing, extra, renamed, signature differs
    detail: str
    line: int  # in the file; 0 for what is missing there


class Pair(NamedTuple):
    """A definition of a file, and the one of a variant that it stands for."""

    mine: Definition
    known: KnownDefinition


@dataclass(frozen=True)
class Comparison:
    """A file beside one variant."""

    variant: Variant
    pairs: tuple[Pair, ...]
    differences: tuple[Difference, ...]  # without what the file has beyond the variant
    similarity: float  # 1.0 for the same statements
    outside: dict[str, str]

    @property
    def is_exact(self) -> bool:
        """Whether every definition of the variant is there, as it is there."""
        return not self.differences

    @property
    def is_near(self) -> bool:
        """Whether so much of the variant is in the file that its adapter may do."""
        return self._has(*_NEAR)

    @property
    def is_a_copy(self) -> bool:
        """Whether enough of the variant is in the file to say where that comes from."""
        return self._has(*_A_COPY)

    def _has(self, of_all: float, of_one: float) -> bool:
        alike = [likeness(*pair) for pair in self.pairs if pair.known.is_telling and pair.mine.kind == pair.known.kind]
        return bool(alike) and (self.similarity >= of_all or max(alike) >= of_one)


def nearest(parsed: Parsed, variants: Sequence[Variant]) -> Comparison | None:
    """The variant that a file, or a part of it, comes from; None if it comes from none."""
    outermost = [one for one in parsed.definitions if one.parent is None]
    gathering = [one for one in outermost if one.gathers]
    inside = [one for one in parsed.definitions if one.parent and any(one.is_inside(outer) for outer in gathering)]
    if not _is_worth_comparing([*gathering, *inside], variants):
        return None
    readable = [one for one in [*outermost, *inside] if _is_readable(one)]
    comparisons = [compare(readable, parsed, variant) for variant in variants]
    copies = [comparison for comparison in comparisons if comparison.is_a_copy]
    return min(copies, key=_by_nearness, default=None)


def _by_nearness(comparison: Comparison) -> tuple[float, int, int, str]:
    variant = comparison.variant
    elsewhere = sum(comparison.outside.get(name) != origin for name, origin in variant.outside.items())
    return -comparison.similarity, len(comparison.differences), elsewhere, variant.name


def _is_readable(definition: Definition) -> bool:
    try:
        return bool(definition.normal)
    except RecursionError:  # one that is nested too deeply; the others still count
        return False


def _is_worth_comparing(definitions: Iterable[Definition], variants: Sequence[Variant]) -> bool:
    """Whether any definition resembles a telling one: most files stop here."""
    known = [one for variant in variants for one in variant.definitions if one.is_telling]
    return any(
        likeness(definition, one) >= _ENOUGH_TO_LOOK
        for definition in definitions
        for one in known
        if definition.kind == one.kind and _is_readable(definition)
    )


def compare(definitions: Sequence[Definition], parsed: Parsed, variant: Variant) -> Comparison:
    """A file's definitions, outer ones before those inside them, beside one variant."""
    pairs = _paired(definitions, variant)
    partners = {pair.mine.own_name: pair.known.name for pair in pairs}
    differences = [difference for pair in pairs for difference in _differences(pair, partners)]
    paired = {pair.known.name for pair in pairs}
    perhaps = "it may be in a part that cannot be read" if parsed.problem else ""
    missing = [Difference(one.name, "missing", perhaps, 0) for one in variant.definitions if one.name not in paired]
    from_outside = outside([pair.mine for pair in pairs], parsed)
    return Comparison(variant, pairs, (*differences, *missing), _similarity(pairs, variant), from_outside)


def _paired(definitions: Sequence[Definition], variant: Variant) -> tuple[Pair, ...]:
    """Which definition stands for which: the same under its name, the same, its name, the most alike."""
    free_mine, free_known = list(definitions), list(variant.definitions)
    pairs: list[Pair] = []

    def pair_up(score: Callable[[Definition, KnownDefinition], float]) -> None:
        scored = [(-score(mine, known), i, j) for i, mine in enumerate(free_mine) for j, known in enumerate(free_known)]
        chosen = [Pair(free_mine[i], free_known[j]) for value, i, j in sorted(scored) if value < 0]
        for mine, known in chosen:
            if mine in free_mine and known in free_known:
                pairs.append(Pair(mine, known))
                free_known.remove(known)
                free_mine.remove(mine)

    pair_up(lambda mine, known: _is_same(mine, known) and mine.name == known.name)
    pair_up(lambda mine, known: _is_same(mine, known) and known.kind != "assignment")
    pair_up(lambda mine, known: mine.name == known.name)
    pair_up(_likeness_under_another_name)
    order = {known.name: index for index, known in enumerate(variant.definitions)}
    return tuple(sorted(pairs, key=lambda pair: order[pair.known.name]))


def _is_same(mine: Definition, known: KnownDefinition) -> bool:
    return mine.kind == known.kind and mine.normal.hash == known.hash


def _likeness_under_another_name(mine: Definition, known: KnownDefinition) -> float:
    if mine.kind != known.kind or known.kind == "assignment" or len(known.statements) < 3:
        return 0.0
    found = likeness(mine, known)
    return found if found >= _ENOUGH_TO_PAIR else 0.0


def likeness(mine: Definition, known: KnownDefinition) -> float:
    """How many of their statements two definitions share, from 0 to 1."""
    return _dice(Counter(statement.hash for statement in mine.normal.statements), Counter(known.statements))


def _dice(mine: Counter[str], known: Counter[str]) -> float:
    total = mine.total() + known.total()
    return 2 * (mine & known).total() / total if total else 1.0


def _similarity(pairs: Sequence[Pair], variant: Variant) -> float:
    shared = total = 0
    for pair in pairs:
        mine = Counter(statement.hash for statement in pair.mine.normal.statements)
        shared += 2 * (mine & Counter(pair.known.statements)).total()
        total += mine.total()
    total += sum(len(known.statements) for known in variant.definitions)
    return shared / total if total else 0.0


def _differences(pair: Pair, partners: dict[str, str]) -> list[Difference]:
    mine, known = pair
    found = []
    line = mine.node.lineno
    if mine.own_name != known.name:
        found.append(Difference(mine.name, "renamed", f"the variant calls it {known.name}", line))
    if mine.kind != known.kind:
        return [*found, Difference(mine.name, "changed", f"{mine.kind} here, {known.kind} in the variant", line)]
    for method, parameters in mine.normal.signature.items():
        expected = known.signature.get(method, parameters)
        if parameters != expected:
            called = f"{method} takes" if method else "takes"
            detail = f"{called} ({_shown(parameters)}), in the variant ({_shown(expected)})"
            if _shown(parameters) == _shown(expected):
                detail = f"{called} ({_shown(parameters)}), with another default in the variant"
            found.append(Difference(mine.name, "signature differs", detail, line))
    if mine.normal.hash != known.hash:
        found.append(Difference(mine.name, "changed", _changes(pair), line))
    else:
        other = [
            f"{one} for {theirs}"
            for one, theirs in zip(mine.normal.uses, known.uses, strict=True)
            if partners.get(one, one) != theirs
        ]
        if other:
            found.append(Difference(mine.name, "changed", f"uses {', '.join(other)}", line))
    return found


def _shown(parameters: Sequence[str]) -> str:
    """A signature without the hashes of its defaults."""
    return ", ".join(parameter.partition("=")[0] + "=" * ("=" in parameter) for parameter in parameters)


def _changes(pair: Pair) -> str:
    left = Counter(pair.known.statements)
    new = []
    for statement in pair.mine.normal.statements:
        if left[statement.hash]:
            left[statement.hash] -= 1
        else:
            new.append(statement.line)
    detail = f"{percent(likeness(*pair), exact=False)} % alike"
    if new:
        lines = sorted(set(new))
        shown = ", ".join(map(str, lines[:6])) + (", …" if len(lines) > 6 else "")
        detail += f"; not in the variant: line{'s' * (len(lines) > 1)} {shown}"
    if left.total():
        detail += f"; gone: {left.total()} statement{'s' * (left.total() > 1)}"
    if not new and not left.total():
        detail += "; the same statements, otherwise connected"
    return detail


def percent(similarity: float, *, exact: bool) -> int:
    """A similarity as shown: 100 for an exact copy, and only then."""
    return 100 if exact else min(99, int(100 * similarity))
