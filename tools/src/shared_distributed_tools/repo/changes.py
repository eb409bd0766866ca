# SPDX-License-Identifier: MIT
"""What a command would write into a repo. One principle for all of it:

only over files whose content git's HEAD holds, shown first, and git undoes it.
"""

import difflib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from ..errors import RefusalError
from ..terminal import print_diff
from .files import checked, read, with_lf, write_atomically
from .git import Checkout


@dataclass(frozen=True)
class Change:
    """One file, before and after."""

    path: str  # in the repo, with forward slashes
    old: bytes | None  # None: there is no such file yet
    new: bytes
    is_removed: bool = False  # then `new` is empty

    @classmethod
    def of(cls, repo: Path, path: str, new: bytes) -> "Change":
        """The change from what a file holds now."""
        return cls(path, read(checked(repo, path)), new)

    @property
    def diff(self) -> str:
        """As a unified diff; empty if nothing changes but line ends."""
        return unified(self.old or b"", self.new, self.path if self.old is not None else "(no file)", self.path)


def unified(before: bytes, after: bytes, old: str, new: str) -> str:
    """A unified diff of two texts; empty if they are equal."""
    left, right = (with_lf(content).decode(errors="replace").splitlines() for content in (before, after))
    return "\n".join(difflib.unified_diff(left, right, old, new, lineterm=""))


def _refuse_unless_git_undoes(repo: Path, changes: Sequence[Change]) -> None:
    """RefusalError, with the command that helps, unless git can bring back every file that would change."""
    checkout = Checkout.around(repo)
    if checkout is None:
        msg = (
            f"{repo} is in no git repository, and git is what undoes this. Make it one first: "
            "`git init && git add -A && git commit -m 'as it was'`"
        )
        raise RefusalError(msg)
    if checkout.head is None:
        msg = f"{checkout.root} has no commit yet; `git add -A && git commit -m 'as it was'` makes the first one"
        raise RefusalError(msg)
    under_way = checkout.under_way
    if under_way:
        msg = f"a {under_way} is under way in {checkout.root}; `git {under_way} --continue` or `--abort` it first"
        raise RefusalError(msg)
    for change in changes:
        _refuse_unless_held(checkout, repo, change)


def _refuse_unless_held(checkout: Checkout, repo: Path, change: Change) -> None:
    path, name = repo / change.path, shlex.quote(change.path)
    held = checkout.committed(path)
    if change.old is not None and held is None:
        msg = f"{change.path} is not committed; `git add -- {name} && git commit -m 'as it was' -- {name}` keeps it"
        raise RefusalError(msg)
    is_changed = change.old is not None and with_lf(change.old) != with_lf(held or b"")
    if is_changed or checkout.is_staged(path):
        msg = (
            f"{change.path} has changes that are not committed; `git commit -- {name}` keeps them, "
            f"`git restore --staged --worktree -- {name}` drops them"
        )
        raise RefusalError(msg)


def carry_out(repo: Path, changes: Sequence[Change], message: str, *, write: bool) -> None:
    """Refuse what git could not undo; show the rest, write it if asked to, and say what to type next.

    Each file is written in one step. A run that is interrupted leaves a dirty tree, which git brings back.
    """
    _refuse_unless_git_undoes(repo, changes)
    for change in changes:
        print_diff(change.diff)
    if not write:
        click.echo(f"{_files(changes)} would change; --write makes the change", err=True)
        return
    for change in changes:
        if change.is_removed:
            checked(repo, change.path).unlink()
        else:
            write_atomically(checked(repo, change.path), change.new, change.old)
    click.echo(f"{_files(changes)} changed. In {repo}:\n{what_to_type(changes, message)}", err=True)


def _files(changes: Sequence[Change]) -> str:
    return "1 file" if len(changes) == 1 else f"{len(changes)} files"


def what_to_type(changes: Sequence[Change], message: str) -> str:
    """The git commands that keep the changes, and those that undo them, before the commit and after it."""
    made = shlex.join(change.path for change in changes if change.old is None)
    changed = shlex.join(change.path for change in changes if change.old is not None)
    add = f"git add -- {made} && " if made else ""
    undo = [f"git restore --staged --worktree -- {changed}"] if changed else []
    undo += [f"git rm -q --cached --ignore-unmatch -- {made} && rm -- {made}"] if made else []
    everything = shlex.join(change.path for change in changes)
    return (
        f"to keep it:            {add}git commit -m {shlex.quote(message)} -- {everything}\n"
        f"to undo it before:     {' && '.join(undo)}\n"
        "to undo it afterwards: git revert HEAD, or the commit's hash once there are others"
    )
