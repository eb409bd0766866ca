# SPDX-License-Identifier: MIT
"""`adapters plan`: every use of the copy, what it becomes in the core, and what deserves a look."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.table import Table
from rich.text import Text

from ..catalog import Adapter
from ..render import render
from ..repo.dependencies import home_of, too_old
from ..terminal import REPO, echo, one_line, print_table, progress
from .proof import UNCHANGED, File
from .risks import Risk, about, risks_of_copy, risks_of_core
from .stages import CORE_STAGE, ORIGINAL, PACKAGE, STAGES, VENDORED, Project, in_the_way, look_at


@click.command("plan")
@click.argument("repo", type=REPO)
@click.option("--path", help="The copy in REPO, if there are several.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def command(ctx: click.Context, repo: Path, path: str | None, as_json: bool) -> None:
    """Show what moving REPO over would change: every call site, and what deserves a look. Reads only.

    Exit code 1 if `adapters migrate` would refuse the next stage, with the reason.
    """
    with progress() as report:
        plan = _plan(look_at(repo, path, lambda done, total: report(done, total, "looking for uses")))
    if as_json:
        click.echo(json.dumps(_as_json(plan), indent=2))
    else:
        _show(plan)
    ctx.exit(int(bool(plan.refused)))


class _Plan(NamedTuple):
    project: Project
    files: list[File]  # that use the copy
    risks: list[Risk]
    refused: list[str]  # why `migrate` would refuse the next stage, line by line
    old: str  # what the project admits that is too old


def _plan(project: Project) -> _Plan:
    risks = risks_of_core(project.uses_of_core)
    if project.stage == CORE_STAGE:
        return _Plan(project, [], risks, [], "")
    risks += risks_of_copy(project.uses, project.ready(), project.stage == ORIGINAL)
    old = too_old(home_of(project.repo, project.copy))
    return _Plan(project, project.files, sorted(risks), in_the_way(project), old)


def _as_json(plan: _Plan) -> dict[str, Any]:
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
        "refused": plan.refused,
        "unread": [one._asdict() for one in project.tree.unread],
    }


def _pull_request(plan: _Plan) -> list[str]:
    """The text of the pull request that replaces a project's own copy."""
    project, adapter = plan.project, plan.project.adapter
    if project.stage != ORIGINAL or adapter is None or plan.refused:
        return []
    old, new = len((project.tree.content(project.copy) or b"").splitlines()), len(render(adapter.name).splitlines())
    uses = sum(len(file.uses) for file in plan.files)
    lines = [f"Replace {project.copy} by a maintained version of the same file", "Fixed:"]
    for one in project.finding.undefined if project.finding else ():
        lines.append(f"- `{one.name}` (line {one.line}) is never defined: the first gather that needs it raises")
    summed = [risk for risk in plan.risks if risk.text.startswith("summed")]
    lines += [f"- {one.path}:{one.line}: the summed gradient was written over the caller's own" for one in summed[:1]]
    lines += [
        "- Ranks with different dtypes or shapes get one error that names them; they hung or crashed.",
        "- Rows are sent as they are, without padding to the longest.",
        f"Stays: names, arguments, gradients, and the {uses} places that use them.",
    ]
    lines += [f"- not fixed: {one.path}:{one.line}: {one.rule}" for one in plan.risks if one.rule != "which-gradient"]
    lines += [f"Changes: {plan.old}"] if plan.old else []
    return [
        *lines,
        f"To check: `adapters parity {project.copy} --adapter {adapter.name}` compares both files on real ranks.",
        f"{old} lines become {new}, which are generated: the header has revision and hash for `adapters check`.",
    ]


def _show(plan: _Plan) -> None:
    project, files, adapter = plan.project, plan.files, plan.project.adapter
    if project.stage == CORE_STAGE or adapter is None:
        shim_left = f"; {project.copy} is kept for others" if project.copy else ""
        echo(one_line(f"{project.repo} uses the core; nothing is left to move{shim_left}"))
    else:
        _show_stages(plan, adapter)
    for title, lines in (
        ("`adapters migrate` would refuse this", plan.refused),
        ("stays on the copy", [f"{file.source.path}: {file.stays}" for file in files if file.stays]),
        ("good to know", [*(about(adapter) if adapter and files else []), *([plan.old] if plan.old else [])]),
        ("deserves a look", [f"{risk.path}:{risk.line}: {risk.rule}: {risk.text}" for risk in plan.risks]),
        ("could not be read", [f"{one.path}: {one.why}" for one in project.tree.unread if one.may_hide_a_copy]),
        ("for a pull request", _pull_request(plan)),
    ):
        if lines:
            echo(f"\n{title}:", bold=True)
            for line in lines:
                echo(one_line(f"  {line}"))


def _show_stages(plan: _Plan, adapter: Adapter) -> None:
    """The copy, the stages ahead, and every place that uses it."""
    project, files, finding = plan.project, plan.files, plan.project.finding
    kind = f", {finding.kind}" if finding else ""
    echo(one_line(f"{project.copy}: adapter {adapter.name}{kind}; at {project.stage}"))
    for one in finding.differences if finding else ():
        echo(
            one_line(f"  differs from the original: {one.name}: {one.how}" + (f": {one.detail}" if one.detail else ""))
        )
    ahead = {
        VENDORED: f"{project.copy} becomes a self-contained file; call sites stay",
        PACKAGE: f"it becomes a shim for {adapter.distribution}, a new dependency; call sites stay",
        CORE_STAGE: f"{sum(file.is_proven for file in files)} of {len(files)} files can move as they are",
    }
    for stage in STAGES[STAGES.index(project.stage) + 1 :]:
        echo(one_line(f"  {stage}: {ahead[stage]}"))
    if not files:
        echo(one_line(f"  nothing in this repo uses {project.copy}"))
        return
    table = Table("site", "kind", "now", "in the core")
    for row in [row for file in files for row in file.rows]:
        style = "red" if row.is_by_hand else "dim" if row.core == UNCHANGED else "green"
        table.add_row(f"{row.site.path}:{row.site.line}", row.site.kind, row.site.text, Text(row.core, style))
    print_table(table)
