# SPDX-License-Identifier: MIT
"""`adapters update`."""

from pathlib import Path

import click

from ..errors import RefusalError
from ..repo.changes import carry_out
from ..repo.files import repo_root
from ..repo.tree import Tree
from ..terminal import echo
from .content import updated
from .state import State, find


@click.command("update")
@click.argument("repo", type=click.Path(path_type=Path))
@click.option("--write", is_flag=True, help="Make the change; without it, it is only shown.")
@click.pass_context
def command(ctx: click.Context, repo: Path, write: bool) -> None:
    """Bring the vendored files in REPO up to this release. Shows the diff; --write makes the change, and git undoes it.

    Edits that were made in REPO are merged, through git. Exit code 1 if a merge leaves something to do: a conflict,
    with git's markers in the file, or names that nothing defines any more.
    """
    root = repo_root(repo)
    files = [file for file in find(root, Tree(root)) if file.state not in (State.SHIM, State.ORIGINAL)]
    if not files:
        msg = f"nothing is vendored in {repo}; run `adapters vendor NAME {repo}`"
        raise RefusalError(msg)
    updates = [updated(file) for file in files]
    changes = [update.change for update in updates if update.change.old != update.change.new]
    if not changes:
        echo(f"{', '.join(file.path for file in files)}: nothing to change", err=True)
        return
    carry_out(root, changes, "distributed.py brought up to date with shared-distributed", write=write)
    for update in updates:
        if update.to_do:
            echo(f"{update.change.path}: {update.to_do}", fg="red", err=True)
    ctx.exit(int(any(update.to_do for update in updates)))
