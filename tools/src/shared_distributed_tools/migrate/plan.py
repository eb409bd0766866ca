# SPDX-License-Identifier: MIT
"""`adapters plan`: every use of the copy, what it becomes in the core, and what deserves a look."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..render import rendered_parts
from ..repo.uses import find_uses
from ..terminal import REPO, echo, one_line, print_table
from .proof import UNCHANGED, File
from .risks import Risk, about, find_risks, in_core
from .stages import CORE_STAGE, ORIGINAL, PACKAGE, STAGES, VENDORED, Project, importing_core, look_at
from .to_core import look_at_files


@dataclass(frozen=True)
class Plan:
    """Everything that `adapters plan` says."""

    project: Project
    files: list[File]  # those that use the copy
    risks: list[Risk]


@click.command("plan")
@click.argument("repo", type=REPO)
@click.option("--path", help="The copy in REPO, if there are several.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(repo: Path, path: str | None, as_json: bool) -> None:
    """Show what moving REPO over would change: every call site, and what deserves a look. Reads only."""
    plan = _plan(look_at(repo, path))
    if as_json:
        click.echo(json.dumps(_as_json(plan), indent=2))
    else:
        _show(plan)


def _plan(project: Project) -> Plan:
    """What is ahead of a project. RefusalError where it cannot be moved on."""
    tree = project.tree
    texts = {path: (tree.content(path) or b"").decode(errors="replace") for path in sorted(importing_core(tree))}
    on_core = [risk for path, text in texts.items() for risk in in_core(path, text)]
    if project.stage == CORE_STAGE:
        return Plan(project, [], on_core)
    adapter = project.ready()
    uses = find_uses(tree, project.copy, [*adapter.api, *(project.finding.names if project.finding else [])])
    risks = find_risks(uses, adapter, project.stage == ORIGINAL)
    return Plan(project, look_at_files(tree, uses, adapter), risks + on_core)


def _as_json(plan: Plan) -> dict[str, Any]:
    project, finding = plan.project, plan.project.finding
    return {
        "repo": str(project.repo),
        "adapter": project.adapter.name if project.adapter else None,
        "copy": project.copy or None,
        "stage": project.stage,
        "kind": finding.kind if finding else None,
        "differences": [one._asdict() for one in finding.differences] if finding else [],
        "files": {file.source.path: file.is_proven for file in plan.files},  # whether it can move to the core
        "sites": [{**row.site._asdict(), "core": row.core} for file in plan.files for row in file.rows],
        "risks": [risk._asdict() for risk in plan.risks],
        "pull_request": "\n".join(_pull_request(plan)),
        "unread": [{"path": one.path, "why": one.why} for one in project.tree.unread],
    }


def _pull_request(plan: Plan) -> list[str]:
    """The text of the pull request that replaces a project's own copy."""
    project, adapter = plan.project, plan.project.adapter
    if project.stage != ORIGINAL or adapter is None:
        return []
    header, body = rendered_parts(adapter.name)
    old, new = len((project.tree.content(project.copy) or b"").splitlines()), len((header.encode() + body).splitlines())
    uses = sum(len(file.uses) for file in plan.files)
    undefined = project.finding.undefined if project.finding else ()
    summed = [risk for risk in plan.risks if risk.text.startswith("summed")]
    not_fixed = [risk for risk in plan.risks if risk.rule != "which-gradient"]
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


def _show(plan: Plan) -> None:
    project, finding, adapter = plan.project, plan.project.finding, plan.project.adapter
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
            CORE_STAGE: f"{sum(file.is_proven for file in plan.files)} of {len(plan.files)} files can move as they are",
        }
        for stage in STAGES[STAGES.index(project.stage) + 1 :]:
            echo(one_line(f"  {stage}: {ahead[stage]}"))
        table = Table("site", "kind", "now", "in the core")
        for row in [row for file in plan.files for row in file.rows]:
            style = "red" if row.is_by_hand else "dim" if row.core == UNCHANGED else "green"
            table.add_row(f"{row.site.path}:{row.site.line}", row.site.kind, row.site.text, Text(row.core, style))
        print_table(table)
    for title, lines in (
        ("stays on the copy", [f"{file.source.path}: {file.stays}" for file in plan.files if file.stays]),
        ("good to know", about(adapter) if adapter and plan.files else []),
        ("deserves a look", [f"{risk.path}:{risk.line}: {risk.rule}: {risk.text}" for risk in plan.risks]),
        ("could not be read", [f"{one.path}: {one.why}" for one in project.tree.unread if one.may_hide_a_copy]),
        ("for a pull request", _pull_request(plan)),
    ):
        if lines:
            echo(f"\n{title}:", bold=True)
            for line in lines:
                echo(one_line(f"  {line}"))
