# SPDX-License-Identifier: MIT
"""`adapters scan`."""

import json
from pathlib import Path
from typing import Any

import click
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

from ..terminal import echo, one_line, progress
from .survey import Finding, Survey, scan

_LISTS = ("differences", "definitions", "undefined", "helpers", "sites")
_COLOURS = {"relative": "magenta", "vendored": "green"}


@click.command("scan")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def command(ctx: click.Context, paths: tuple[Path, ...], as_json: bool) -> None:
    """Find copies of the originals under PATH, whatever their files and functions are called. Reads only.

    For each: the nearest original, how similar it is, what differs, names that it fails to define, and where it is
    used. Exit code: 0 for no copy, 1 for copies, 2 if something that could hold one was not read.
    """
    with progress(MofNCompleteColumn(), TextColumn("files"), TimeRemainingColumn()) as report:
        survey = scan(paths, progress=lambda done, total: report(done, total, "scanning"))
    copies = [finding for finding in survey.findings if finding.kind != "vendored"]
    exit_code = 2 if any(unread.may_hide_a_copy for unread in survey.unread) else int(bool(copies))
    if as_json:
        unread = [one._asdict() for one in survey.unread]
        found = {"findings": [_as_json(finding) for finding in survey.findings], "unread": unread}
        click.echo(json.dumps({**found, "files": survey.files, "exit_code": exit_code}, indent=2))
    else:
        _show(survey, len(copies))
    ctx.exit(exit_code)


def _as_json(finding: Finding) -> dict[str, Any]:
    facts = finding._asdict()
    return facts | {key: [one._asdict() for one in facts[key]] for key in _LISTS}


def _show(survey: Survey, copies: int) -> None:
    for finding in survey.findings:
        place = Path(finding.root, finding.path).as_posix()
        echo(one_line(f"{place}: {_headline(finding)}"), fg=_COLOURS.get(finding.kind, "yellow"))
        for line in _details(finding):
            echo(one_line(f"    {line}"))
    for unread in survey.unread:
        echo(one_line(f"not read: {unread.path}: {unread.why}"))
    found = f"{copies} cop{'y' if copies == 1 else 'ies'} found" if copies else "no copy found"
    echo(f"{found} in {'1 file' if survey.files == 1 else f'{survey.files:,} files'}")


def _headline(finding: Finding) -> str:
    if finding.kind == "vendored":
        return f"vendored ({finding.adapter or 'unknown adapter'}): see `adapters check`"
    if finding.kind == "relative":
        return f"a relative that no adapter covers ({', '.join(finding.names)})"
    alike = "exact" if finding.similarity == 100 else f"edited, {finding.similarity} % similar"
    return f"{'inlined in a larger file, ' * (finding.kind == 'inlined')}{alike}: the original of {finding.adapter}"


def _details(finding: Finding) -> list[str]:
    lines = []
    for one in finding.differences:
        where = f" (line {one.line})" if one.line else ""
        lines.append(f"{one.name}{where}: {one.how}" + (f": {one.detail}" if one.detail else ""))
    if finding.kind in ("inlined", "relative"):
        lines += [f"{part.name}: lines {part.line} to {part.end}" for part in finding.definitions]
    if finding.undefined:
        lines.append("undefined: " + ", ".join(f"{one.name} (line {one.line})" for one in finding.undefined))
    lines += finding.notes
    return [*lines, *(f"{site.kind} {site.path}:{site.line}: {site.text}" for site in finding.sites)]
