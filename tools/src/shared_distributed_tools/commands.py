# SPDX-License-Identifier: MIT
"""The commands that render, vendor and check. None imports torch, or runs anything that lies in a repo."""

import json
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from . import floor, vendoring
from .catalog import ADAPTERS, adapter_named
from .errors import RefusalError
from .paths import repo_root
from .render import render as rendered_text
from .render import rendered_parts
from .sources import load
from .status import Inspection, State, inspect_repo
from .terminal import print_diff, print_table

_NAME = click.Choice(list(ADAPTERS))


@click.command("list")
def list_adapters() -> None:
    """The adapters, the file each replaces downstream, and their versions."""
    table = Table("adapter", "version", "core", "downstream repo", "file")
    for adapter in ADAPTERS.values():
        sources = load(adapter)
        flat = f"\nor distributed.py beside {adapter.flat_beside}" if adapter.flat_beside else ""
        row = (adapter.name, sources.adapter_version, sources.core_version, adapter.downstream)
        table.add_row(*row, adapter.target + flat)
    print_table(table)


@click.command()
@click.argument("name", type=_NAME)
def render(name: str) -> None:
    """Print the self-contained file for the adapter NAME: a pure function of the sources."""
    click.echo(rendered_text(name).encode(), nl=False)  # bytes: no newline translation on the way


@click.command()
@click.argument("name", type=_NAME)
@click.argument("repo", type=click.Path(path_type=Path))
@click.option("--path", help="The file in REPO, where it is not found by itself.")
@click.option("--dry-run", is_flag=True, help="Show the diff, write nothing.")
@click.option("--force", is_flag=True, help="Drop local edits. What git does not hold stays protected.")
def vendor(name: str, repo: Path, path: str | None, dry_run: bool, force: bool) -> None:
    """Put the adapter NAME into REPO as one file, with a small lock beside it.

    Shows the diff first. Refuses where somebody's work could be lost.
    """
    change = vendoring.vendor(repo_root(repo), adapter_named(name), path, force=force)
    print_diff(change.diff)
    note = floor.note(change.seen.repo, change.seen.relative)
    if note and change.writes_file:
        click.secho(f"note: {note}", fg="yellow", err=True)
    if not dry_run:
        change.apply()
    done = "would be written" if dry_run else "written; commit it together with its lock"
    click.echo(f"{change.seen.relative}: {done if change.writes_file else 'already current'}", err=True)


@click.command()
@click.argument("repos", nargs=-1, type=click.Path(path_type=Path), metavar="[REPO]...")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def check(ctx: click.Context, repos: tuple[Path, ...], as_json: bool) -> None:
    """Say of each vendored file in REPO (default: here) whether it is current. Reads only.

    Needs no network, and no lock: the file's header is enough. See `adapters --help` for exit codes.
    """
    seen: list[Inspection] = []
    for repo in repos or (Path(),):
        found = inspect_repo(repo_root(repo))
        if not found:
            msg = f"{repo}: nothing is vendored here; `adapters vendor NAME REPO` adds one, `adapters status` says more"
            raise RefusalError(msg)
        seen += found
    exit_code = max(inspection.state.exit_code for inspection in seen)
    if as_json:
        click.echo(json.dumps({"files": [_as_json(one) for one in seen], "exit_code": exit_code}, indent=2))
    else:
        table = Table("file", "adapter", "version", "state", "note")
        for one in seen:
            header = (one.header.adapter, one.header.version) if one.header else ("", "")
            state = Text(one.state.label, style="red" if one.state.exit_code else "green")
            table.add_row(Text(one.relative), *header, state, one.note or one.state.meaning)
        print_table(table)
    ctx.exit(exit_code)


@click.command()
@click.argument("repo", type=click.Path(path_type=Path))
def diff(repo: Path) -> None:
    """Show two diffs for each vendored file in REPO: its edits there, and our changes since."""
    for seen in _vendored(repo):
        base = seen.base
        if seen.header is None or base is None:
            msg = f"{seen.relative}: {seen.note or seen.state.meaning}; there is nothing to compare it with"
            raise RefusalError(msg)
        new = rendered_parts(seen.header.adapter)[1]
        for label, after in (("your edits", seen.body), ("our changes", new)):
            text = vendoring.unified(base, after, f"{seen.relative} (as vendored)", f"{seen.relative} ({label})")
            click.echo(f"=== {seen.relative}: {label}{'' if text else ': none'}")
            print_diff(text)


@click.command()
@click.argument("repo", type=click.Path(path_type=Path))
@click.option("--merge", "with_merge", is_flag=True, help="Merge with edits that were made in REPO.")
@click.pass_context
def update(ctx: click.Context, repo: Path, with_merge: bool) -> None:
    """Bring the vendored files in REPO up to this release.

    Edited files need --merge: a three-way merge through git. A conflict leaves git's markers in the
    file, the lock where it was, and exit code 15; resolve it and run `adapters update` once more.
    """
    changes = [vendoring.update(seen, with_merge=with_merge) for seen in _vendored(repo)]
    for change in changes:
        name, outcome = change.seen.relative, "nothing to change"
        if change.writes_file or change.writes_lock:
            outcome = "updated" if change.writes_file else "lock brought up to date"
        print_diff(change.diff)
        change.apply()
        if change.conflict:
            click.echo(f"{name}: conflict; resolve the markers in it, then run `adapters update` again", err=True)
        elif change.writes_file and change.broken:
            click.echo(f"{name}: merged without a conflict, but {change.broken}; mend it before you commit", err=True)
        else:
            click.echo(f"{name}: {outcome}", err=True)
    if any(change.conflict or (change.writes_file and change.broken) for change in changes):
        ctx.exit(State.CONFLICT.exit_code)


def _vendored(repo: Path) -> list[Inspection]:
    found = [seen for seen in inspect_repo(repo_root(repo)) if seen.state is not State.SHIM]
    if not found:
        msg = f"nothing is vendored in {repo}; run `adapters vendor NAME {repo}`"
        raise RefusalError(msg)
    return found


def _as_json(seen: Inspection) -> dict[str, str | int | None]:
    header = seen.header
    return {
        "repo": str(seen.repo),
        "path": seen.relative,
        "adapter": header.adapter if header else None,
        "version": header.version if header else None,
        "state": seen.state.name.lower(),
        "exit_code": seen.state.exit_code,
        "note": seen.note or seen.state.meaning,
    }
