# SPDX-License-Identifier: MIT
"""`adapters scan` and `adapters fingerprint`."""

import json
import time
from pathlib import Path
from typing import Any

import click
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

from ..catalog import ADAPTERS
from ..terminal import progress
from .fingerprints import Variant, add, load, record_file, shipped
from .survey import Finding, Survey, scan

FOUND = 20
UNSURE = 21
_COLOURS = {"exact": "yellow", "edited": "yellow", "inlined": "yellow", "relative": "magenta", "vendored": "green"}


@click.command("scan")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="PATH...")
@click.option("--known", type=click.Path(path_type=Path), multiple=True, help="More fingerprints, from this file.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def scan_command(ctx: click.Context, paths: tuple[Path, ...], known: tuple[Path, ...], as_json: bool) -> None:
    """Find copies of the originals under PATH, whatever their files and functions are called. Reads only.

    For each: the nearest known variant, how similar it is, what differs, names that it fails to define, and where
    it is used. See `adapters --help` for exit codes.
    """
    variants = [*shipped(), *(variant for path in known for variant in load(path))]
    begun = time.monotonic()
    survey = _scan_with_progress(paths, variants)
    exit_code = _exit_code(survey)
    if as_json:
        click.echo(json.dumps(_as_json(survey, exit_code), indent=2))
    else:
        _show(survey)
        click.echo(f"took {time.monotonic() - begun:.1f} s", err=True)
    ctx.exit(exit_code)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="What to call the variant.")
@click.option("--adapter", type=click.Choice(list(ADAPTERS)), help="The adapter that covers it, if one does.")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    default=Path("known-copies.json"),
    show_default=True,
    help="The file of fingerprints to add it to; made where there is none.",
)
def fingerprint(file: Path, name: str, adapter: str | None, into: Path) -> None:
    """Add the copy in FILE to a file of fingerprints, for `adapters scan --known`.

    What is kept are names, signatures and hashes; no source text.
    """
    variant = record_file(file, name, adapter)
    done = f"{len(variant.definitions)} definitions added to {into}" if add(variant, into) else f"already in {into}"
    click.echo(f"{name}: {done}")


def _scan_with_progress(paths: tuple[Path, ...], variants: list[Variant]) -> Survey:
    with progress(MofNCompleteColumn(), TextColumn("files"), TimeRemainingColumn()) as report:
        return scan(paths, variants, lambda done, total: report(done, total, "scanning"))


def _exit_code(survey: Survey) -> int:
    if survey.copies:
        return FOUND
    return UNSURE if any(passed.may_hide_a_copy for passed in survey.passed) else 0


def _show(survey: Survey) -> None:
    for finding in survey.findings:
        click.secho(f"{Path(finding.root, finding.path).as_posix()}: {_headline(finding)}", fg=_COLOURS[finding.kind])
        for line in _details(finding):
            click.echo(f"    {line}")
    for passed in survey.passed:
        click.echo(f"passed over: {passed.path}: {passed.why}")
    copies = len(survey.copies)
    found = f"{copies} cop{'y' if copies == 1 else 'ies'} found" if copies else "no copy found"
    files = "1 file" if survey.files == 1 else f"{survey.files:,} files"
    click.echo(f"{found} in {files}, {survey.lines:,} lines")


def _headline(finding: Finding) -> str:
    if finding.kind == "vendored":
        return f"vendored ({finding.adapter or 'unknown adapter'})"
    if finding.kind == "relative":
        return f"a relative that no adapter covers ({', '.join(finding.names)})"
    alike = "exact" if finding.similarity == 100 else f"edited, {finding.similarity} % similar"
    by = f"adapter {finding.adapter}" if finding.adapter else "no adapter covers it"
    return f"{'inlined in a larger file, ' * (finding.kind == 'inlined')}{alike}: variant {finding.variant} ({by})"


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
    lines += [f"{site.kind} {site.path}:{site.line}: {site.text}" for site in finding.sites]
    return lines


def _as_json(survey: Survey, exit_code: int) -> dict[str, Any]:
    return {
        "findings": [
            {
                "path": finding.path,
                "root": finding.root,
                "kind": finding.kind,
                "variant": finding.variant,
                "adapter": finding.adapter,
                "similarity": finding.similarity,
                "differences": [one._asdict() for one in finding.differences],
                "definitions": [vars(part) for part in finding.definitions],
                "undefined": [one._asdict() for one in finding.undefined],
                "notes": list(finding.notes),
                "sites": [site._asdict() for site in finding.sites],
            }
            for finding in survey.findings
        ],
        "passed_over": [{"path": passed.path, "why": passed.why} for passed in survey.passed],
        "files": survey.files,
        "lines": survey.lines,
        "exit_code": exit_code,
    }
