# SPDX-License-Identifier: MIT
"""`adapters plan`, `migrate`, `rollback` and `status`. None imports torch, or runs anything that lies in a repo."""

import json
from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from ..errors import RefusalError
from ..files import read, write_atomically
from ..paths import checked, repo_root
from ..sources import core_version
from ..terminal import print_diff, print_table
from . import journal
from .fingerprints import Variant
from .fingerprints import load as load_variants
from .overview import BAD, GOOD, LOOK, Project, look_at
from .page import page
from .plan import UNCHANGED, Plan, make_plan
from .record import RECORD, Done, FileChange, Pending, Trace, hash_or_none, now, read_record
from .stages import Step, diff_of, next_step
from .standing import CORE_STAGE, PACKAGE, STAGES, VENDORED, Standing, stand
from .tree import SourceTree

_EXIT = {GOOD: 0, LOOK: 40, BAD: 41}

_REPO = click.argument("repo", type=click.Path(path_type=Path))
_PATH = click.option("--path", help="The copy in REPO, where there are several.")
_KNOWN = click.option(
    "--known", type=click.Path(path_type=Path), multiple=True, help="More fingerprints, as for `adapters scan`."
)
_WRITE = click.option("--write", is_flag=True, help="Make the change; without it, it is only shown.")


@click.command()
@_REPO
@_PATH
@_KNOWN
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def plan(repo: Path, path: str | None, known: tuple[Path, ...], as_json: bool) -> None:
    """Say what moving REPO over would change: every site, what needs a person, what is worth a look. Reads only."""
    root = repo_root(repo)
    made = make_plan(root, _below(root, path), _variants(known))
    if as_json:
        click.echo(json.dumps(_plan_as_json(made), indent=2))
    else:
        _show_plan(made)


@click.command()
@_REPO
@click.option("--to", "stage", type=click.Choice(STAGES[1:]), required=True, help="The next stage.")
@click.option(
    "--from",
    "source",
    metavar="WHERE",
    help="For --to package: `index` (pip's), a PATH (a wheel, a folder of wheels, a checkout of the monorepo), "
    "or git+URL[@REF].",
)
@_PATH
@_KNOWN
@_WRITE
def migrate(repo: Path, stage: str, source: str | None, path: str | None, known: tuple[Path, ...], write: bool) -> None:
    """Move REPO to the next stage: original, vendored, package, core. Shows the diff; --write makes the change.

    A stage is one commit: what it touches has to be committed before. `adapters rollback` undoes it.
    """
    root = repo_root(repo)
    pending = read_record(root).pending
    if pending is not None and pending.done.stage == stage:
        _settle(root, pending, write=write, forward=True)
        return
    tree = SourceTree(root)
    standing = stand(root, tree, _below(root, path), _variants(known))
    step = next_step(standing, tree, stage, source)
    print_diff(step.diff)
    for note in step.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)
    if write:
        _make(standing, step)
    files = f"{len(step.changes)} files" if len(step.changes) > 1 else "1 file"
    done = f"{files} changed; commit them together with {RECORD}" if write else f"{files} would change; --write does it"
    click.echo(f"{root.name}: {standing.stage} -> {stage}: {done}", err=True)


@click.command()
@_REPO
@_WRITE
def rollback(repo: Path, write: bool) -> None:
    """Take REPO back one stage, byte for byte. Shows the diff; --write makes the change.

    Refused where a file of that stage was changed since.
    """
    root = repo_root(repo)
    record = read_record(root)
    if record.pending is not None:
        _settle(root, record.pending, write=write, forward=False)
        return
    if not record.stages:
        msg = f"{root} has no stage on record; what was not done by `adapters migrate` is for git to undo"
        raise RefusalError(msg)
    done = record.stages[-1]
    changes = tuple(_undone(root, trace) for trace in done.files)
    print_diff(diff_of(changes))
    if write:
        journal.carry_out(root, record, Pending(done, forward=False, changes=changes))
    before = record.stages[-2].stage if len(record.stages) > 1 else "what it was"
    word = "back" if write else "would go back; --write does it"
    click.echo(f"{root.name}: {done.stage} -> {before}: {word}", err=True)


@click.command()
@click.argument("repos", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REPO...")
@click.option("--html", "page_file", type=click.Path(path_type=Path), help="Write a page for the wall here, too.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@_KNOWN
@click.pass_context
def status(
    ctx: click.Context, repos: tuple[Path, ...], page_file: Path | None, as_json: bool, known: tuple[Path, ...]
) -> None:
    """Say where every REPO stands: stage, current or stale, edits, parity. Reads only.

    See `adapters --help` for exit codes.
    """
    variants = _variants(known)
    projects = [look_at(repo_root(repo), variants) for repo in repos]
    exit_code = max(_EXIT[project.tone] for project in projects)
    if page_file is not None:
        write_atomically(page_file.absolute(), page(projects, core_version(), now()).encode())
    if as_json:
        shown = {"projects": [project.as_json() for project in projects], "exit_code": exit_code}
        click.echo(json.dumps(shown, indent=2))
    else:
        _show_status(projects)
    ctx.exit(exit_code)


def _below(root: Path, path: str | None) -> str | None:
    return None if path is None else checked(root, path).relative_to(root).as_posix()


def _variants(files: tuple[Path, ...]) -> list[Variant]:
    return [variant for file in files for variant in load_variants(file)]


def _make(standing: Standing, step: Step) -> None:
    adapter = standing.ready()
    done = Done(step.stage, core_version(), now(), tuple(map(Trace.of, step.changes)))
    record = replace(standing.record, adapter=adapter.name, copy=standing.copy)
    journal.carry_out(standing.repo, record, Pending(done, forward=True, changes=step.changes))


def _undone(root: Path, trace: Trace) -> FileChange:
    current = read(journal.place_of(root, trace.path))
    if hash_or_none(current) != trace.after:
        msg = f"{trace.path} was changed since; take that back first (`git log -p {trace.path}`), then run this again"
        raise RefusalError(msg)
    return FileChange(trace.path, current, trace.old, trace.mode)


def _settle(root: Path, pending: Pending, *, write: bool, forward: bool) -> None:
    """Finish a change that was cut off, or undo it: whichever leads where the command leads."""
    if not write:
        raise RefusalError(journal.describe(root, pending))
    record = read_record(root)
    (journal.finish if pending.forward == forward else journal.undo)(root, record)
    where = pending.done.stage if forward else f"before {pending.done.stage}"
    click.echo(f"{root.name}: the change that was cut off is settled; this repo is at {where}", err=True)


def _show_status(projects: list[Project]) -> None:
    table = Table("project", "adapter", "stage", "state", "edits", "parity", "note")
    colours = {GOOD: "green", LOOK: "yellow", BAD: "red"}
    for one in projects:
        parity = Text(f"{one.parity.result}, {one.parity.when}", colours[one.parity.tone]) if one.parity else "not run"
        edits = Text(", ".join(one.edits) or "none")
        state = Text(one.state, colours[one.tone])
        name = Text(one.name, overflow="fold")
        table.add_row(name, one.adapter, one.stage, state, edits, parity, Text(one.note))
    print_table(table)


# ------------------------------------------------------------------ plan


def _plan_as_json(made: Plan) -> dict[str, object]:
    standing = made.standing
    assert standing.adapter is not None
    finding = standing.finding
    return {
        "repo": str(standing.repo),
        "adapter": standing.adapter.name,
        "copy": standing.copy,
        "stage": standing.stage,
        "kind": finding.kind if finding else None,
        "differences": [one._asdict() for one in finding.differences] if finding else [],
        "problem": standing.problem or None,
        "sites": [planned.as_json() for planned in made.planned],
        "by_hand": [remark._asdict() for remark in made.by_hand],
        "risks": [risk._asdict() for risk in made.risks],
        "not_parsed": made.broken,
    }


def _show_plan(made: Plan) -> None:
    standing = made.standing
    assert standing.adapter is not None
    adapter, finding = standing.adapter, standing.finding
    kind = f", {finding.kind}" if finding else ""
    click.secho(f"{standing.copy}: adapter {adapter.name}{kind}; at {standing.stage}", bold=True)
    if standing.problem:
        click.secho(standing.problem, fg="red")
    for one in finding.differences if finding else ():
        click.echo(f"  edited: {one.name}: {one.how}" + (f": {one.detail}" if one.detail else ""))
    ahead = {
        VENDORED: f"{standing.copy} becomes a self-contained file; call sites stay",
        PACKAGE: f"it becomes a shim for {adapter.distribution}, a new dependency; call sites stay",
        CORE_STAGE: "it goes; call sites use shared_distributed as below",
    }
    for stage in STAGES[STAGES.index(standing.stage) + 1 :] if not standing.problem else ():
        click.echo(f"  {stage}: {ahead[stage]}")
    if standing.stage == CORE_STAGE:
        click.echo("  nothing is left to move")
        return
    table = Table("site", "kind", "now", "core")
    # an import statement once, whatever it imports
    for site, core in dict.fromkeys((planned.site._replace(name=""), planned.core) for planned in made.planned):
        style = {"by hand": "red", UNCHANGED: "dim"}.get(core, "green")
        table.add_row(f"{site.path}:{site.line}", site.kind, Text(site.text), Text(core, style=style))
    print_table(table)
    for title, lines in (
        ("by hand, before core", [str(remark) for remark in made.by_hand]),
        ("worth a look", [f"{risk.path}:{risk.line}: {risk.rule}: {risk.text}" for risk in made.risks]),
        ("not parsed, and not looked at", [f"{path}: {why}" for path, why in made.broken.items()]),
    ):
        if lines:
            click.secho(f"\n{title}:", bold=True)
            for line in lines:
                click.echo(f"  {line}")
