# SPDX-License-Identifier: MIT
"""`adapters migrate`."""

from pathlib import Path
from typing import Any

import click

from ..repo.changes import carry_out
from ..terminal import REPO, progress, say_left
from .stages import STAGES, look_at, step_to


@click.command("migrate")
@click.argument("repo", type=REPO)
@click.option("--to", "stage", type=click.Choice(STAGES[1:]), required=True, help="A later stage.")
@click.option("--path", help="The copy in REPO, if there are several.")
@click.option(
    "--requirement",
    "requirements",
    multiple=True,
    metavar="TEXT",
    help="For package and core: what to add instead of NAME>=VERSION; may be repeated.",
)
@click.option("--accept-edits", is_flag=True, help="Replace the file although somebody edited it; the edits are lost.")
@click.option("--write", is_flag=True, help="Make the change; without it, it is only shown.")
def command(repo: Path, path: str | None, write: bool, **options: Any) -> None:
    """Move REPO to a later stage. Shows the diff; --write makes the change, and git undoes it."""
    with progress() as report:
        project = look_at(repo, path, lambda done, total: report(done, total, "looking for uses"))
        step = step_to(project, **options)
    carry_out(repo, step.changes, step.message, write=write)
    say_left(step.to_do)
