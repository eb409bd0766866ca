# SPDX-License-Identifier: MIT
"""`adapters parity`, and its report: what was compared, the counts, and every kind of finding."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.progress import MofNCompleteColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from ..catalog import ADAPTERS
from ..terminal import echo, print_table, progress

_EXAMPLES = 3  # of one kind of difference; the rest is in the JSON
_STYLES = {"same": "green", "better": "cyan", "stricter": "yellow", "different": "red"}
_NAMES = {
    "undefined_and_known": "not defined by the old file, supplied",
    "undefined_and_unknown": "not defined by the old file, and not known here",
    "only_in_adapter": "not in the old file, so not compared",
    "lacking": "in the original, and not in the adapter",
}


@click.command("parity")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--adapter", type=click.Choice(list(ADAPTERS)), required=True, help="The adapter to compare with.")
@click.option(
    "--world-size",
    type=click.IntRange(1, 16),
    multiple=True,
    default=(1, 2, 3),
    show_default=True,
    help="How many ranks; may be repeated.",
)
@click.option("--json", "is_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def command(ctx: click.Context, file: Path, adapter: str, world_size: tuple[int, ...], is_json: bool) -> None:
    """Run the old FILE and an adapter side by side on real ranks, and compare them bit for bit.

    FILE is executed, in child processes. Needs no GPU and no network. Exit code: 0 if all
    is the same, better, or refused as the contract announces; 1 if something is different, or the adapter lacks a name
    of the original; 2 if FILE cannot be run.
    """
    from .compare import compare  # torch comes with it, and `--help` goes without

    echo(f"parity runs {file}, in child processes", err=True)
    with progress(MofNCompleteColumn(), TimeElapsedColumn()) as report_progress:
        report = compare(file, ADAPTERS[adapter], world_size, report_progress)
    exit_code = int(report["counts"]["different"] > 0 or bool(report["lacking"]))
    if is_json:
        click.echo(json.dumps({**report, "exit_code": exit_code}, indent=2))
    else:
        show(report)
    ctx.exit(exit_code)


def show(report: dict[str, Any]) -> None:
    """The facts, the counts by function, and what is not the same. Nothing depends on when it ran."""
    echo(f"{report['file']} against {report['adapter']} {report['adapter_version']}, as `adapters vendor` writes it")
    worlds = ", ".join(map(str, report["world_sizes"]))
    cases = sum(report["counts"].values())
    echo(f"{cases} cases, each with both, on gloo; world sizes {worlds}, and no process group")
    for key, words in _NAMES.items():
        if report[key]:
            echo(f"{words}: {', '.join(report[key])}")
    table = Table("function", *(Column(verdict, justify="right") for verdict in _STYLES))
    for function, counts in {**report["functions"], "all": report["counts"]}.items():
        table.add_row(function, *(Text(str(n), _STYLES[verdict] if n else "dim") for verdict, n in counts.items()))
    print_table(table)
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for finding in sorted(report["findings"], key=lambda finding: [*_STYLES].index(finding["verdict"])):
        function = finding["function"] if finding["verdict"] == "different" else ""
        said = re.split(r"\d", finding["old"])[0]  # without numbers: the same thing is said of many cases
        kinds.setdefault((finding["verdict"], function, finding["part"], said), []).append(finding)
    for findings in kinds.values():
        echo("\n".join(_described(findings, report["edited_definitions"])))


def _described(findings: list[dict[str, Any]], edited: dict[str, str]) -> Iterator[str]:
    verdict = findings[0]["verdict"]
    functions = Counter(finding["function"] for finding in findings)
    yield f"\n{verdict}: {findings[0]['part']} ({', '.join(f'{name} {n}' for name, n in functions.items())})"
    for finding in findings[: _EXAMPLES if verdict == "different" else 1]:
        yield f"  {finding['case']}" + ("" if finding["rank"] is None else f"; on rank {finding['rank']}")
        yield f"    old  {finding['old']}"
        yield f"    new  {finding['new']}"
        if verdict == "different" and finding["function"] in edited:
            yield f"    {finding['function']} is not the original's definition: {edited[finding['function']]}"
        elif finding["right"]:
            yield f"    in one process: {finding['right']} is right"
    if verdict == "different" and len(findings) > _EXAMPLES:
        yield f"  and {len(findings) - _EXAMPLES} more: --json lists all"
