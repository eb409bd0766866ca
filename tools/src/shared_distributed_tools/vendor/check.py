# SPDX-License-Identifier: MIT
"""`adapters check`."""

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..catalog import CORE_DISTRIBUTION
from ..errors import RefusalError
from ..repo.dependencies import is_listed
from ..repo.tree import Tree
from ..terminal import REPO, print_table
from .state import GOOD, Vendored, find, is_kept


@click.command("check")
@click.argument("repos", nargs=-1, type=REPO, metavar="[REPO]...")
@click.option("--accept-edits", is_flag=True, help="Accept edited files: only stale ones are a finding.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def command(ctx: click.Context, repos: tuple[Path, ...], accept_edits: bool, as_json: bool) -> None:
    """Show the state of each vendored file in REPO (default: here). Reads only, and needs no git.

    Exit code 0 if every file is current or a shim, or the project is on the core; 1 if not; 2 if nothing is there,
    or a file that could be one of ours cannot be read.
    """
    files = [_as_json(file) for repo in repos or (Path.cwd(),) for file in _checked(repo)]
    good = GOOD | ({"edited"} if accept_edits else set())
    exit_code = int(any(file["state"] not in good for file in files))
    if as_json:
        click.echo(json.dumps({"files": files, "exit_code": exit_code}, indent=2))
    else:
        table = Table("file", "adapter", "version", "state", "meaning")
        for file in files:
            state = Text(file["state"], "green" if file["state"] in good else "red")
            table.add_row(file["path"], file["adapter"] or "", file["version"] or "", state, file["meaning"])
        print_table(table)
    ctx.exit(exit_code)


def _checked(repo: Path) -> list[Vendored]:
    tree = Tree(repo)
    found = find(repo, tree)
    unread = [f"  {one.path}: {one.why}" for one in tree.unread if one.may_hide_a_copy and is_kept(one.path)]
    if unread:
        raise RefusalError(f"{repo}: not everything can be read:", *unread)
    if not found and is_listed(repo, CORE_DISTRIBUTION):
        return [Vendored(repo, "(no file)", "current", f"the project uses {CORE_DISTRIBUTION} itself")]
    if not found:
        msg = f"{repo}: nothing is vendored here; `adapters vendor NAME REPO` adds a file, `adapters scan` finds copies"
        raise RefusalError(msg)
    return found


def _as_json(file: Vendored) -> dict[str, Any]:
    facts = {name: getattr(file.header, name, None) for name in ("adapter", "version", "revision")}
    return {"repo": str(file.repo), "path": file.path, **facts, "state": file.state, "meaning": file.meaning}
