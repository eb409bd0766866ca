# SPDX-License-Identifier: MIT
"""A comparison for people: what was compared, the counts, and every kind of finding. Nothing depends on when it ran."""

import re
from collections import Counter
from collections.abc import Iterator

from rich.table import Column, Table
from rich.text import Text

from ..terminal import echo, print_table
from .compare import Comparison
from .verdict import Finding

_EXAMPLES = 3  # of one kind of difference; the rest is in the JSON
_STYLES = {"same": "green", "better": "cyan", "stricter": "yellow", "different": "red"}


def show(comparison: Comparison) -> None:
    """The facts, the counts by function, and what is not the same."""
    echo("\n".join(_facts(comparison)))
    table = Table("function", *(Column(verdict, justify="right") for verdict in _STYLES))
    for function, counts in {**comparison.functions, "all": comparison.counts()}.items():
        table.add_row(function, *(Text(str(n), _STYLES[verdict] if n else "dim") for verdict, n in counts.items()))
    print_table(table)
    kinds: dict[tuple[str, ...], list[Finding]] = {}
    for finding in comparison.findings:
        if finding.verdict != "same":
            function = finding.case.function if finding.verdict == "different" else ""
            said = re.split(r"\d", finding.old)[0]  # without numbers: the same thing is said of many cases
            kinds.setdefault((finding.verdict, function, finding.part, said), []).append(finding)
    for verdict in _STYLES:
        for findings in [found for kind, found in kinds.items() if kind[0] == verdict]:
            echo("\n".join(_described(findings, comparison)))


def _facts(comparison: Comparison) -> Iterator[str]:
    yield f"{comparison.file} against {comparison.adapter} {comparison.adapter_version}, as `adapters vendor` writes it"
    worlds = ", ".join(map(str, comparison.world_sizes))
    yield f"{len(comparison.findings)} cases, each with both, on gloo; world sizes {worlds}, and no process group"
    for words, names in (
        ("not defined by the old file, supplied", comparison.undefined_and_known),
        (
            "imported by the old file from what cannot be imported here, supplied",
            comparison.imported_from_absent_modules,
        ),
        ("not defined by the old file, and not known here", comparison.undefined_and_unknown),
        ("not in the old file, so not compared", comparison.only_in_adapter),
    ):
        if names:
            yield f"{words}: {', '.join(names)}"


def _described(findings: list[Finding], comparison: Comparison) -> Iterator[str]:
    verdict, part = findings[0][1:3]
    functions = Counter(finding.case.function for finding in findings)
    yield f"\n{verdict}: {part} ({', '.join(f'{name} {count}' for name, count in functions.items())})"
    for finding in findings[: _EXAMPLES if verdict == "different" else 1]:
        yield f"  {finding.case.title}{'' if finding.rank is None else f'; on rank {finding.rank}'}"
        yield f"    old  {finding.old}"
        yield f"    new  {finding.new}"
        edited = comparison.edited_definitions.get(finding.case.function)
        if edited and verdict == "different":
            yield f"    {finding.case.function} is not the original's definition: {edited}"
        elif finding.right:
            yield f"    in one process: {finding.right} is right"
    if verdict == "different" and len(findings) > _EXAMPLES:
        yield f"  and {len(findings) - _EXAMPLES} more: --json lists all"
