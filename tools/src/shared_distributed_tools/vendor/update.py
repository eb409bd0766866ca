# SPDX-License-Identifier: MIT
"""`adapters update`."""

from pathlib import Path

import click

from ..errors import RefusalError
from ..repo.changes import carry_out, checkout_of
from ..repo.tree import Tree
from ..terminal import REPO, echo, one_line
from .content import updated
from .state import find


@click.command("update")
@click.argument("repo", type=REPO)
@click.option("--write", is_flag=True, help="Make the change; without it, it is only shown.")
@click.pass_context
def command(ctx: click.Context, repo: Path, write: bool) -> None:
    """Bring the vendored files in REPO up to this release. Shows the diff; --write makes the change, and git undoes it.

    Edits that were made in REPO are merged, through git. Exit code 1 if a merge leaves something to do: a conflict,
    with git's markers in the file, or names that nothing defines any more.
    """
    checkout_of(repo)  # a refusal comes before a walk, which may take long
    files = [file for file in find(repo, Tree(repo)) if file.state not in ("shim", "original")]
    if not files:
        msg = f"nothing is vendored in {repo}; run `adapters vendor NAME {repo}`"
        raise RefusalError(msg)
    updates = [updated(file) for file in files if file.state not in ("current", "edited") or file.header is None]
    if not updates:
        kept = "; the edits in it are kept" if any(file.state == "edited" for file in files) else ""
        echo(one_line(f"{', '.join(file.path for file in files)}: nothing to change{kept}"), err=True)
        return
    changes = [change for change, _ in updates]
    carry_out(repo, changes, "distributed.py brought up to date with shared-distributed", write=write)
    for change, to_do in updates:
        if to_do:
            echo(one_line(f"{change.path}: {to_do}"), fg="red", err=True)
    ctx.exit(int(any(to_do for _, to_do in updates)))
