# SPDX-License-Identifier: MIT
"""`adapters plan`: every use of the copy, what it becomes in the core, and what deserves a look."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..repo.files import repo_root
from ..repo.tree import Unread
from ..repo.uses import Site, find_uses
from ..terminal import echo, print_table
from .risks import Risk, find_risks
from .stages import CORE_STAGE, PACKAGE, STAGES, VENDORED, Obstacle, Project, look_at
from .to_core import ABOUT_SIZES, BY_HAND, UNCHANGED, planned


@dataclass(frozen=True)
class Plan:
    """Everything that `adapters plan` says."""

    project: Project
    sites: list[tuple[Site, str]]  # a site, and what it becomes in the core
    risks: list[Risk]
    unread: list[Unread]


@click.command("plan")
@click.argument("repo", type=click.Path(path_type=Path))
@click.option("--path", help="The copy in REPO, where there are several.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(repo: Path, path: str | None, as_json: bool) -> None:
    """Say what moving REPO over would change: every call site, and what deserves a look. Reads only."""
    root = repo_root(repo)
    plan = make_plan(root, path)
    if as_json:
        click.echo(json.dumps(_as_json(plan), indent=2))
    else:
        _show(plan)


def make_plan(repo: Path, path: str | None = None) -> Plan:
    """Look at a repo. RefusalError where there is nothing to plan for."""
    project = look_at(repo, path)
    if project.stage == CORE_STAGE:
        return Plan(project, [], [], project.tree.unread)
    if project.obstacle is not Obstacle.INLINED:  # then the copy's own file has its call sites
        project.ready()
    adapter = project.adapter
    assert adapter is not None
    own = project.finding.names if project.finding else []
    uses = find_uses(project.tree, project.copy, [*adapter.api, *own])
    uses = [use for use in uses if project.obstacle or use.source.path != project.copy]
    return Plan(project, planned(uses, adapter), find_risks(uses, adapter), project.tree.unread)


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
        "sites": [{**site._asdict(), "core": core} for site, core in plan.sites],
        "risks": [risk._asdict() for risk in plan.risks],
        "unread": [{"path": one.path, "why": one.why} for one in plan.unread],
    }


def _show(plan: Plan) -> None:
    project, finding = plan.project, plan.project.finding
    if project.stage == CORE_STAGE:
        echo(f"{project.repo} uses the core; nothing is left to move")
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
        CORE_STAGE: "call sites use shared_distributed as below, by hand for now",
    }
    for stage in STAGES[STAGES.index(project.stage) + 1 :]:
        echo(f"  {stage}: {ahead[stage]}")
    table = Table("site", "kind", "now", "in the core")
    for site, core in plan.sites:
        style = "red" if core.startswith(BY_HAND) else "dim" if core == UNCHANGED else "green"
        table.add_row(f"{site.path}:{site.line}", site.kind, site.text, Text(core, style))
    print_table(table)
    echo(ABOUT_SIZES)
    for title, lines in (
        ("deserves a look", [f"{risk.path}:{risk.line}: {risk.rule}: {risk.text}" for risk in plan.risks]),
        ("could not be read", [f"{one.path}: {one.why}" for one in plan.unread if one.may_hide_a_copy]),
    ):
        if lines:
            echo(f"\n{title}:", bold=True)
            for line in lines:
                echo(f"  {line}")
