# SPDX-License-Identifier: MIT
"""A comparison as tables for people and as JSON for scripts. Nothing in either depends on when it ran."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ..terminal import whole
from .compare import Comparison
from .verdict import Finding, Verdict

_EXAMPLES = 3  # of one kind of difference; the rest is in the JSON
_STYLES = {"same": "green", "better": "cyan", "stricter": "yellow", "different": "red"}


def exit_code(comparison: Comparison) -> int:
    """1 if anything is different, else 0."""
    return 1 if comparison.counts()["different"] else 0


def show(comparison: Comparison, console: Console) -> None:
    """The counts, why what is better is better, and every kind of difference."""
    for line in _facts(comparison):
        console.print(Text(line), soft_wrap=True)
    console.print(_counts(comparison))
    for verdict in (Verdict.BETTER, Verdict.STRICTER):
        if comparison.counts()[verdict.value]:
            console.print(whole(_explained(comparison, verdict)))
    for line in _different(comparison):
        console.print(Text(line), soft_wrap=True)


def _facts(comparison: Comparison) -> Iterator[str]:
    old, new = comparison.old, comparison.new
    yield f"{comparison.file} (sha256 {old.version[:12]}, {old.description.where})"
    yield f"against {comparison.adapter} {new.version}, as `adapters vendor` writes it"
    worlds = ", ".join(map(str, comparison.worlds))
    yield f"{len(comparison.findings)} cases, each with both, on gloo; world sizes {worlds}, and no process group"
    for words, names in (
        ("not defined by the old file, supplied", old.description.not_defined),
        ("imported by the old file from what cannot be imported here, supplied", old.description.not_importable),
        ("not defined by the old file, and not known here", old.description.unknown),
        ("not in the old file, so not compared", comparison.only_new),
        ("in the old file only: the adapter has no", comparison.only_old),
    ):
        if names:
            yield f"{words}: {', '.join(names)}"


def _counts(comparison: Comparison) -> Table:
    table = Table("function", *(Column(verdict, justify="right") for verdict in _STYLES))
    for function in [*comparison.functions, None]:
        if function is None:
            table.add_section()
        counts = comparison.counts(function)
        cells = (Text(str(n), style=_STYLES[verdict] if n else "dim") for verdict, n in counts.items())
        table.add_row(function or "all", *cells)
    return table


def _explained(comparison: Comparison, verdict: Verdict) -> Table:
    heading = f"{verdict.value}: the old file gave"
    table = Table(heading, "the adapter gives", Column("cases", justify="right"), "in")
    for findings in _by_kind(comparison, verdict):
        first = findings[0].difference
        functions = Counter(finding.case.function for finding in findings)
        where = ", ".join(f"{name} {count}" for name, count in functions.items())
        old = first.old if first.is_an_end else f"{first.part}: {first.old}"
        table.add_row(Text(old), Text(first.new), str(len(findings)), Text(where))
    return table


def _different(comparison: Comparison) -> Iterator[str]:
    for findings in _by_kind(comparison, Verdict.DIFFERENT):
        case, first, number = findings[0].case, findings[0].difference, len(findings)
        yield f"\ndifferent: {case.function}, {first.part} ({number} case{'s' if number > 1 else ''})"
        for case, _, difference, right in findings[:_EXAMPLES]:
            yield f"  {case.title}{'' if difference.rank is None else f'; on rank {difference.rank}'}"
            yield f"    old  {difference.old}"
            yield f"    new  {difference.new}"
            if right:
                yield f"    in one process: {right} is right"
        if number > _EXAMPLES:
            yield f"  and {number - _EXAMPLES} more: --json lists all"


def _by_kind(comparison: Comparison, verdict: Verdict) -> list[list[Finding]]:
    """Findings that say the same thing, together; what is different, for each function apart."""
    kinds: dict[tuple[str, ...], list[Finding]] = {}
    for finding in comparison.findings:
        if finding.verdict is verdict:
            function = finding.case.function if verdict is Verdict.DIFFERENT else ""
            kinds.setdefault((function, *finding.difference.kind), []).append(finding)
    return list(kinds.values())


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything but the cases that came out the same, which are counted."""
    old, new = comparison.old, comparison.new
    return {
        "file": str(comparison.file),
        "sha256": old.version,
        "loaded": old.description.where,
        "adapter": comparison.adapter,
        "adapter_version": new.version,
        "world_sizes": list(comparison.worlds),
        "undefined_and_known": old.description.not_defined,
        "imported_from_absent_modules": old.description.not_importable,
        "undefined_and_unknown": old.description.unknown,
        "only_in_adapter": comparison.only_new,
        "only_in_old_file": comparison.only_old,
        "counts": comparison.counts(),
        "functions": {name: comparison.counts(name) for name in comparison.functions},
        "findings": [_finding(finding) for finding in comparison.findings if finding.verdict is not Verdict.SAME],
        "exit_code": exit_code(comparison),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    case, verdict, difference, right = finding
    found = {"function": case.function, "case": case.title, "world_size": case.world, "verdict": verdict.value}
    return {**found, **difference._asdict(), "right": right}
