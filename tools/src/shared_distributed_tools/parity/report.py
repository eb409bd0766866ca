# SPDX-License-Identifier: MIT
"""A comparison as tables for people and as JSON for scripts. Nothing in either depends on when it ran."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ..terminal import printable, whole
from .compare import Comparison
from .verdict import Finding, Verdict

_EXAMPLES = 3  # of one kind of difference; the rest is in the JSON
_STYLES = {"same": "green", "better": "cyan", "stricter": "yellow", "different": "red"}


def show(comparison: Comparison, console: Console) -> None:
    """The counts, why what is better is better, and every kind of difference."""
    for line in _facts(comparison):
        console.print(Text(printable(line)), soft_wrap=True)
    table = Table("function", *(Column(verdict, justify="right") for verdict in _STYLES))
    for function in [*comparison.functions, None]:
        if function is None:
            table.add_section()
        counts = comparison.counts(function).items()
        table.add_row(function or "all", *(Text(str(n), _STYLES[verdict] if n else "dim") for verdict, n in counts))
    console.print(table)
    explained: tuple[Verdict, ...] = ("better", "stricter")
    for verdict in explained:
        if comparison.counts()[verdict]:
            console.print(whole(_explained(comparison, verdict)))
    for line in _different(comparison):
        console.print(Text(printable(line)), soft_wrap=True)


def _facts(comparison: Comparison) -> Iterator[str]:
    yield f"{comparison.file} (sha256 {comparison.sha256[:12]}, {comparison.old.where})"
    yield f"against {comparison.adapter} {comparison.version}, as `adapters vendor` writes it"
    worlds = ", ".join(map(str, comparison.worlds))
    yield f"{len(comparison.findings)} cases, each with both, on gloo; world sizes {worlds}, and no process group"
    for words, names in (
        ("not defined by the old file, supplied", comparison.old.not_defined),
        ("imported by the old file from what cannot be imported here, supplied", comparison.old.not_importable),
        ("not defined by the old file, and not known here", comparison.old.unknown),
        ("not in the old file, so not compared", comparison.only_new),
        ("in the old file only: the adapter has no", comparison.only_old),
    ):
        if names:
            yield f"{words}: {', '.join(names)}"


def _explained(comparison: Comparison, verdict: Verdict) -> Table:
    table = Table(f"{verdict}: the old file gave", "the adapter gives", Column("cases", justify="right"), "in")
    for findings in _by_kind(comparison, verdict):
        first = findings[0].difference
        functions = Counter(finding.case.function for finding in findings)
        where = ", ".join(f"{name} {count}" for name, count in functions.items())
        old = first.old if first.is_an_end else f"{first.part}: {first.old}"
        table.add_row(Text(old), Text(first.new), str(len(findings)), Text(where))
    return table


def _different(comparison: Comparison) -> Iterator[str]:
    for findings in _by_kind(comparison, "different"):
        first, number = findings[0], len(findings)
        heading = f"{first.case.function}, {first.difference.part}"
        yield f"\ndifferent: {heading} ({number} case{'s' if number > 1 else ''})"
        for case, _, difference, right in findings[:_EXAMPLES]:
            yield f"  {case.title}{'' if difference.rank is None else f'; on rank {difference.rank}'}"
            yield f"    old  {difference.old}"
            yield f"    new  {difference.new}"
            edited = comparison.edited.get(case.function)
            if edited:
                yield f"    {case.function} is not the original's definition: {edited}"
            elif right:
                yield f"    in one process: {right} is right"
        if number > _EXAMPLES:
            yield f"  and {number - _EXAMPLES} more: --json lists all"


def _by_kind(comparison: Comparison, verdict: Verdict) -> list[list[Finding]]:
    """Findings that say the same thing of different cases, together; what is different, for each function apart."""
    kinds: dict[tuple[str, ...], list[Finding]] = {}
    for finding in comparison.findings:
        if finding.verdict == verdict:
            part, old, new, _ = finding.difference
            end = (old, new.partition(":")[0]) if finding.difference.is_an_end else ()
            function = finding.case.function if verdict == "different" else ""
            kinds.setdefault((function, part, *end), []).append(finding)
    return list(kinds.values())


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything but the cases that came out the same, which are counted."""
    return {
        "file": str(comparison.file),
        "sha256": comparison.sha256,
        "loaded": comparison.old.where,
        "adapter": comparison.adapter,
        "adapter_version": comparison.version,
        "world_sizes": list(comparison.worlds),
        "undefined_and_known": comparison.old.not_defined,
        "imported_from_absent_modules": comparison.old.not_importable,
        "undefined_and_unknown": comparison.old.unknown,
        "only_in_adapter": comparison.only_new,
        "only_in_old_file": comparison.only_old,
        "edited_definitions": dict(comparison.edited),
        "counts": comparison.counts(),
        "functions": {name: comparison.counts(name) for name in comparison.functions},
        "findings": [_finding(*finding) for finding in comparison.findings if finding.verdict != "same"],
    }


def _finding(case: Any, verdict: str, difference: Any, right: str) -> dict[str, Any]:
    found = {"function": case.function, "case": case.title, "world_size": case.world, "verdict": verdict}
    return {**found, **difference._asdict(), "right": right}
