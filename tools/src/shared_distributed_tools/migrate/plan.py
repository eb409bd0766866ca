# SPDX-License-Identifier: MIT
"""`adapters plan`: every use of the copy, what it becomes in the core, and what deserves a look."""

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..render import render
from ..repo.uses import find_uses
from ..terminal import REPO, echo, one_line, print_table
from .proof import UNCHANGED, File
from .risks import Risk, about, find_risks, in_core
from .stages import CORE_STAGE, ORIGINAL, PACKAGE, STAGES, VENDORED, Project, importing_core, look_at
from .to_core import look_at_files


@click.command("plan")
@click.argument("repo", type=REPO)
@click.option("--path", help="The copy in REPO, if there are several.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(repo: Path, path: str | None, as_json: bool) -> None:
    """Show what moving REPO over would change: every call site, and what deserves a look. Reads only."""
    project = look_at(repo, path)
    files, risks = _ahead_of(project)
    if as_json:
        click.echo(json.dumps(_as_json(project, files, risks), indent=2))
    else:
        _show(project, files, risks)


def _ahead_of(project: Project) -> tuple[list[File], list[Risk]]:
    """The files that use the copy, and the places that deserve a look. RefusalError where it cannot be moved on."""
    tree = project.tree
    on_core = [risk for path in sorted(importing_core(tree)) for risk in in_core(path, tree.content(path) or b"")]
    if project.stage == CORE_STAGE:
        return [], on_core
    adapter = project.ready()
    uses = find_uses(tree, project.copy, [*adapter.api, *(project.finding.names if project.finding else [])])
    return look_at_files(tree, uses, adapter), find_risks(uses, adapter, project.stage == ORIGINAL) + on_core


def _as_json(project: Project, files: list[File], risks: list[Risk]) -> dict[str, Any]:
    finding = project.finding
    return {
        "repo": str(project.repo),
        "adapter": project.adapter.name if project.adapter else None,
        "copy": project.copy or None,
        "stage": project.stage,
        "kind": finding.kind if finding else None,
        "differences": [one._asdict() for one in finding.differences] if finding else [],
        "files": {file.source.path: file.is_proven for file in files},  # whether it can move to the core
        "sites": [{**row.site._asdict(), "core": row.core} for file in files for row in file.rows],
        "risks": [risk._asdict() for risk in risks],
        "pull_request": "\n".join(_pull_request(project, files, risks)),
        "unread": [one._asdict() for one in project.tree.unread],
    }


def _pull_request(project: Project, files: list[File], risks: list[Risk]) -> list[str]:
    """The text of the pull request that replaces a project's own copy."""
    adapter = project.adapter
    if project.stage != ORIGINAL or adapter is None:
        return []
    old, new = len((project.tree.content(project.copy) or b"").splitlines()), len(render(adapter.name).splitlines())
    uses = sum(len(file.uses) for file in files)
    undefined = project.finding.undefined if project.finding else ()
    summed = [risk for risk in risks if risk.text.startswith("summed")]
    not_fixed = [risk for risk in risks if risk.rule != "which-gradient"]
    return [
        f"Replace {project.copy} by a maintained version of the same file",
        "Fixed:",
        *(
            f"- `{one.name}` (line {one.line}) is never defined: the first gather that needs it raises"
            for one in undefined
        ),
        *(f"- {one.path}:{one.line}: the summed gradient was written over the caller's own" for one in summed[:1]),
        "- Ranks with different dtypes or shapes get one error that names them; they hung or crashed.",
        "- Rows are sent as they are, without padding to the longest.",
        f"Stays: names, arguments, gradients, and the {uses} places that use them.",
        *(f"- not fixed by this: {one.path}:{one.line}: {one.rule}" for one in not_fixed),
        f"To check: `adapters parity {project.copy} --adapter {adapter.name}` compares both files on real ranks.",
        f"{old} lines become {new}, which are generated: the header has revision and hash for `adapters check`.",
    ]


def _show(project: Project, files: list[File], risks: list[Risk]) -> None:
    finding, adapter = project.finding, project.adapter
    if project.stage == CORE_STAGE or adapter is None:
        shim_left = f"; {project.copy} is kept for others" if project.copy else ""
        echo(one_line(f"{project.repo} uses the core; nothing is left to move{shim_left}"))
    else:
        kind = f", {finding.kind}" if finding else ""
        echo(one_line(f"{project.copy}: adapter {adapter.name}{kind}; at {project.stage}"))
        for one in finding.differences if finding else ():
            echo(f"  differs from the original: {one.name}: {one.how}" + (f": {one.detail}" if one.detail else ""))
        ahead = {
            VENDORED: f"{project.copy} becomes a self-contained file; call sites stay",
            PACKAGE: f"it becomes a shim for {adapter.distribution}, a new dependency; call sites stay",
            CORE_STAGE: f"{sum(file.is_proven for file in files)} of {len(files)} files can move as they are",
        }
        for stage in STAGES[STAGES.index(project.stage) + 1 :]:
            echo(one_line(f"  {stage}: {ahead[stage]}"))
        table = Table("site", "kind", "now", "in the core")
        for row in [row for file in files for row in file.rows]:
            style = "red" if row.is_by_hand else "dim" if row.core == UNCHANGED else "green"
            table.add_row(f"{row.site.path}:{row.site.line}", row.site.kind, row.site.text, Text(row.core, style))
        print_table(table)
    for title, lines in (
        ("stays on the copy", [f"{file.source.path}: {file.stays}" for file in files if file.stays]),
        ("good to know", about(adapter) if adapter and files else []),
        ("deserves a look", [f"{risk.path}:{risk.line}: {risk.rule}: {risk.text}" for risk in risks]),
        ("could not be read", [f"{one.path}: {one.why}" for one in project.tree.unread if one.may_hide_a_copy]),
        ("for a pull request", _pull_request(project, files, risks)),
    ):
        if lines:
            echo(f"\n{title}:", bold=True)
            for line in lines:
                echo(one_line(f"  {line}"))
