# SPDX-License-Identifier: MIT
"""`adapters status`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.table import Table
from rich.text import Text

from ..errors import RefusalError, ToolError
from ..repo.files import read, write_atomically
from ..terminal import REPO, as_html, print_table
from ..vendor.state import GOOD
from .stages import CORE_STAGE, NO_COPY, ORIGINAL, PACKAGE, STAGES, NotMovableError, Project, look_at

_COLOURS = ("green", "yellow", "red")


class Line(NamedTuple):
    """What is said about one project."""

    project: str
    adapter: str
    stage: str
    state: str
    note: str
    exit_code: int  # 0 good, 1 something is to be done, 2 it could not be read; the highest counts


@click.command("status")
@click.argument("repos", nargs=-1, required=True, type=REPO, metavar="REPO...")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Also write the table as an HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def command(ctx: click.Context, repos: tuple[Path, ...], page: Path | None, as_json: bool) -> None:
    """Show the stage of every REPO, and whether its file is current. Reads only.

    Exit code 0 if all is well, 1 if something is to be done, 2 if a project could not be read.
    """
    lines = [status_of(repo) for repo in repos]
    exit_code = max(line.exit_code for line in lines)
    if page is not None:
        _write_page(page, _table(lines))
    if as_json:
        click.echo(json.dumps({"projects": [line._asdict() for line in lines], "exit_code": exit_code}, indent=2))
    else:
        print_table(_table(lines))
    ctx.exit(exit_code)


def _table(lines: Sequence[Line]) -> Table:
    table = Table("project", "adapter", "stage", "state", "what to do")
    for line in sorted(lines, key=lambda one: -one.exit_code):
        table.add_row(line.project, line.adapter, line.stage, Text(line.state, _COLOURS[line.exit_code]), line.note)
    return table


def _write_page(page: Path, table: Table) -> None:
    if page.is_symlink() or (page.exists() and not page.is_file()):
        msg = f"{page} is not a plain file; give another --html"
        raise RefusalError(msg)
    path = page.absolute()
    write_atomically(path, as_html(table).encode(), read(path))


def status_of(repo: Path) -> Line:
    """One project: state, next step, severity. What cannot be read is part of the answer."""
    try:
        project = look_at(repo)
        return Line(repo.name, project.adapter.name if project.adapter else "", project.stage, *_told(project))
    except NotMovableError as error:
        return Line(repo.name, error.adapter, error.stage, error.state, str(error), int(error.state != NO_COPY))
    except ToolError as error:
        return Line(repo.name, "", "", "cannot be read", str(error), 2)


def _told(project: Project) -> tuple[str, str, int]:
    """State, next step, severity."""
    if project.stage == CORE_STAGE:
        return "current", "", 0
    following = f"next: `adapters migrate REPO --to {STAGES[STAGES.index(project.stage) + 1]}`"
    if project.stage == ORIGINAL:
        finding = project.finding
        is_exact = finding is not None and finding.kind == "exact"
        like = f", {finding.similarity} % like the original" if finding and finding.similarity else ""
        return "original" if is_exact else f"original, edited{like}", following, 1
    on_core, left = project.files_on_core() if project.stage == PACKAGE else (0, 0)
    if on_core:
        every = on_core + left
        following = f"{on_core} of {every} files are on the core; `adapters plan REPO` says what the others need"
    seen = project.inspected()
    is_good = seen.state in GOOD
    return seen.state, following if is_good else seen.meaning, int(not is_good)
