# SPDX-License-Identifier: MIT
"""`adapters plan`: every use of the copy, what it becomes in the core, and what deserves a look."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..catalog import CORE_DISTRIBUTION
from ..render import rendered_parts
from ..render.shim import shim
from ..repo.files import repo_root
from ..repo.tree import Unread
from ..repo.uses import find_uses
from ..terminal import echo, print_table
from .proof import BY_HAND, UNCHANGED, File
from .risks import Risk, about, find_risks, in_core
from .stages import CORE_STAGE, ORIGINAL, PACKAGE, STAGES, VENDORED, Obstacle, Project, importing_core, look_at
from .to_core import look_at_files


@dataclass(frozen=True)
class Plan:
    """Everything that `adapters plan` says."""

    project: Project
    files: list[File]  # those that use the copy
    risks: list[Risk]
    unread: list[Unread]


@click.command("plan")
@click.argument("repo", type=click.Path(path_type=Path))
@click.option("--path", help="The copy in REPO, if there are several.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(repo: Path, path: str | None, as_json: bool) -> None:
    """Show what moving REPO over would change: every call site, and what deserves a look. Reads only."""
    root = repo_root(repo)
    plan = make_plan(root, path)
    if as_json:
        click.echo(json.dumps(_as_json(plan), indent=2))
    else:
        _show(plan)


def make_plan(repo: Path, path: str | None = None) -> Plan:
    """Look at a repo. RefusalError where there is nothing to plan for."""
    project = look_at(repo, path)
    tree = project.tree
    on_core = [
        risk
        for path in sorted(importing_core(tree))
        for risk in in_core(path, (tree.content(path) or b"").decode(errors="replace"))
    ]
    if project.stage == CORE_STAGE:
        return Plan(project, [], on_core, tree.unread)
    if project.obstacle is not Obstacle.INLINED:  # then the copy's own file has its call sites
        project.ready()
    adapter = project.adapter
    assert adapter is not None
    own = project.finding.names if project.finding else []
    uses = find_uses(tree, project.copy, [*adapter.api, *own])
    uses = [use for use in uses if project.obstacle or use.source.path != project.copy]
    risks = find_risks(uses, adapter, project.stage == ORIGINAL) + on_core
    return Plan(project, look_at_files(tree, uses, adapter), risks, tree.unread)


def _as_json(plan: Plan) -> dict[str, Any]:
    project, finding = plan.project, plan.project.finding
    return {
        "repo": str(project.repo),
        "adapter": project.adapter.name if project.adapter else None,
        "copy": project.copy or None,
        "stage": project.stage,
        "kind": finding.kind if finding else None,
        "differences": [one._asdict() for one in finding.differences] if finding else [],
        "obstacle": project.advice or None,
        "files": {file.source.path: file.is_proven for file in plan.files},  # whether it can move to the core
        "sites": [{**site._asdict(), "core": core} for file in plan.files for site, core in file.rows],
        "risks": [risk._asdict() for risk in plan.risks],
        "pull_request": "\n".join(pull_request(plan)),
        "unread": [{"path": one.path, "why": one.why} for one in plan.unread],
    }


def pull_request(plan: Plan) -> list[str]:
    """The text of a pull request for the next stage; nothing where there is no next one."""
    project, adapter = plan.project, plan.project.adapter
    if project.obstacle or project.stage == CORE_STAGE or adapter is None:
        return []
    lines = len((project.tree.content(project.copy) or b"").splitlines())
    proven = [file.source.path for file in plan.files if file.is_proven]
    if project.stage == PACKAGE and not proven:
        return []
    if project.stage == PACKAGE:
        return [
            f"Use {CORE_DISTRIBUTION} directly in {len(proven)} of {len(plan.files)} files",
            f"- {project.copy} stays, for those who import it. Values and gradients are the same.",
            f"- To check: `adapters plan REPO` lists each line; {', '.join(proven)} would change.",
        ]
    if project.stage == VENDORED:
        return [
            f"Take {project.copy} from {adapter.distribution}",
            f"- {lines} lines become a shim of {shim(adapter).count(chr(10))}; call sites stay.",
            "- To check: `adapters check REPO`. A dependency on a URL (`git+…`) is refused by PyPI.",
        ]
    header, body = rendered_parts(adapter.name)
    new = len((header.encode() + body).splitlines())
    uses = sum(len(file.uses) for file in plan.files)
    undefined = plan.project.finding.undefined if plan.project.finding else ()
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
        f"{lines} lines become {new}, which are generated: the header has revision and hash for `adapters check`.",
    ]


def _show(plan: Plan) -> None:
    project, finding = plan.project, plan.project.finding
    if project.stage == CORE_STAGE:
        shim_left = f"; {project.copy} is kept for others" if project.copy else ""
        echo(f"{project.repo} uses the core; nothing is left to move{shim_left}")
        _lists(plan)
        return
    assert project.adapter is not None
    kind = f", {finding.kind}" if finding else ""
    echo(f"{project.copy}: adapter {project.adapter.name}{kind}; at {project.stage}", bold=True)
    if project.advice:
        echo(project.advice, fg="red")
    for one in finding.differences if finding else ():
        echo(f"  differs from the original: {one.name}: {one.how}" + (f": {one.detail}" if one.detail else ""))
    ahead = {
        VENDORED: f"{project.copy} becomes a self-contained file; call sites stay",
        PACKAGE: f"it becomes a shim for {project.adapter.distribution}, a new dependency; call sites stay",
        CORE_STAGE: f"{sum(file.is_proven for file in plan.files)} of {len(plan.files)} files can move as they are",
    }
    for stage in STAGES[STAGES.index(project.stage) + 1 :]:
        echo(f"  {stage}: {ahead[stage]}")
    table = Table("site", "kind", "now", "in the core")
    for site, core in [row for file in plan.files for row in file.rows]:
        style = "red" if core.startswith(BY_HAND) else "dim" if core == UNCHANGED else "green"
        table.add_row(f"{site.path}:{site.line}", site.kind, site.text, Text(core, style))
    print_table(table)
    _lists(plan)


def _lists(plan: Plan) -> None:
    adapter = plan.project.adapter
    for title, lines in (
        ("stays on the copy", [f"{file.source.path}: {file.stays}" for file in plan.files if file.stays]),
        ("good to know", about(adapter) if adapter and plan.files else []),
        ("deserves a look", [f"{risk.path}:{risk.line}: {risk.rule}: {risk.text}" for risk in plan.risks]),
        ("could not be read", [f"{one.path}: {one.why}" for one in plan.unread if one.may_hide_a_copy]),
        ("for a pull request", pull_request(plan)),
    ):
        if lines:
            echo(f"\n{title}:", bold=True)
            for line in lines:
                echo(f"  {line}")
