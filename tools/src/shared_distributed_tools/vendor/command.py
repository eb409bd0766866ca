# SPDX-License-Identifier: MIT
"""`adapters vendor`: `adapters migrate --to vendored`, with the adapter named."""

from pathlib import Path

import click

from ..catalog import ADAPTERS
from ..errors import RefusalError
from ..repo.changes import carry_out
from ..repo.dependencies import home_of, too_old
from ..repo.git import Checkout
from ..repo.tree import Tree
from ..repo.uses import find_uses
from ..scan.survey import find_copy
from ..terminal import REPO, echo, one_line, say_left
from .content import afresh, refuse_losses
from .state import inspect, locate


@click.command("vendor")
@click.argument("name", type=click.Choice(list(ADAPTERS)))
@click.argument("repo", type=REPO)
@click.option("--path", help="The file in REPO, if it is not found automatically.")
@click.option("--accept-edits", is_flag=True, help="Replace the file although somebody edited it; the edits are lost.")
@click.option("--write", is_flag=True, help="Make the change; without it, it is only shown.")
def command(name: str, repo: Path, path: str | None, accept_edits: bool, write: bool) -> None:
    """Put the adapter NAME into REPO as one file. Shows the diff; --write makes the change, and git undoes it."""
    seen = inspect(repo, locate(repo, ADAPTERS[name], path))
    is_this = seen.header is not None and seen.header.adapter == name
    if is_this and seen.state == "current":
        echo(one_line(f"{seen.path}: already current"), err=True)
        return
    if is_this and not accept_edits and seen.state == "edited":
        msg = f"{seen.path} is edited here, and there is nothing newer; --accept-edits goes on without the edits"
        raise RefusalError(msg)
    if is_this and not accept_edits and seen.state != "conflict":
        msg = f"{seen.path} is vendored already: {seen.meaning}. Use `adapters update {repo}`, or --accept-edits"
        raise RefusalError(msg)
    tree, adapter = Tree(repo, Checkout.around(repo)), ADAPTERS[name]
    copy = find_copy(tree, seen.path)
    uses = find_uses(tree, seen.path, [*adapter.api, *(copy.names if copy else [])])
    refuse_losses(seen, adapter, copy, uses, accept_edits=accept_edits)
    carry_out(repo, *afresh(seen, adapter), write=write)
    say_left([too_old(home_of(repo, seen.path))])
