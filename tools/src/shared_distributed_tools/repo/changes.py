# SPDX-License-Identifier: MIT
"""What a command would write into a repo. One principle for all of it:

only over files whose content git's HEAD holds, shown first, and git undoes it.
"""

import difflib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import RefusalError
from ..terminal import echo, one_line, print_diff
from .files import checked, with_lf, write_atomically
from .git import Checkout


@dataclass(frozen=True)
class Change:
    """One file, before and after."""

    path: str  # in the repo, with forward slashes
    old: bytes | None  # None: there is no such file yet
    new: bytes | None  # None: it is removed


def unified(before: bytes, after: bytes, old: str, new: str) -> str:
    """A unified diff of two texts; empty if they are equal but for line ends."""
    left, right = (with_lf(content).decode(errors="replace").splitlines() for content in (before, after))
    return "\n".join(difflib.unified_diff(left, right, old, new, lineterm=""))


def checkout_of(repo: Path) -> Checkout:
    """The checkout around a repo. RefusalError, with the command that helps, where git could undo nothing."""
    checkout = Checkout.around(repo)
    first = "git add -A && git commit -m 'as it was'"
    if checkout is None:
        why = f"{repo} is in no git repository, and git is what undoes this. Make it one first: `git init && {first}`"
    elif checkout.head is None:
        why = f"{checkout.root} has no commit yet; make the first one: `{first}`"
    elif checkout.under_way:
        what = checkout.under_way
        why = f"a {what} is under way in {checkout.root}; `git {what} --continue` or `--abort` it first"
    else:
        return checkout
    raise RefusalError(why)


def _refuse_unless_held(checkout: Checkout, repo: Path, change: Change) -> None:
    """RefusalError, with the command that helps, unless git brings back the very bytes of a file."""
    path, name = checked(repo, change.path), _quoted(change.path)
    other, conversion = checkout.belongs_to(path), checkout.conversion(path)
    held = None if other else checkout.committed(path)
    why = ""
    if other is not None:
        why = f"is in a repository of its own, {other}; give that one as REPO"
    elif conversion:
        why = f"is not stored in git as it is here ({conversion} in .gitattributes); take that away, and commit"
    elif held is not None and change.old is None:
        why = f"is committed, but not here; `git restore -- {name}` or `git sparse-checkout disable` brings it back"
    elif change.old is not None and not (os.access(path, os.W_OK) and path.stat().st_mode & 0o222):
        why = f"is read-only; `chmod u+w -- {name}` if it may be replaced"
    elif change.old is not None and held is None:
        why = f"is not committed; `git add -- {name} && git commit -m 'as it was' -- {name}` keeps it"
    elif with_lf(change.old or b"") != with_lf(held or b"") or checkout.is_staged(path):
        why = (
            f"has changes that are not committed; `git commit -- {name}` keeps them, "
            f"`git restore --staged --worktree -- {name}` drops them"
        )
    if why:
        msg = f"{change.path} {why}"
        raise RefusalError(msg)


def carry_out(repo: Path, changes: Sequence[Change], message: str, *, write: bool) -> None:
    """Refuse what git could not undo; show the rest, write it if asked to, and say what to type next.

    Each file is written in one step. A run that is interrupted leaves a dirty tree, which git brings back, and
    perhaps a temporary file in the git directory, which the next run removes.
    """
    checkout = checkout_of(repo)
    for change in changes:
        _refuse_unless_held(checkout, repo, change)
    for change in changes:
        name = one_line(change.path)
        print_diff(unified(change.old or b"", change.new or b"", "(no file)" if change.old is None else name, name))
    files = "1 file" if len(changes) == 1 else f"{len(changes)} files"
    if not write:
        echo(f"{files} would change; --write makes the change", err=True)
        return
    for change in changes:
        write_atomically(checked(repo, change.path), change.new, change.old, checkout.git_dir)
    echo(f"{files} changed. In {one_line(str(repo))}:\n{what_to_type(changes, message)}", err=True)


def _quoted(name: str) -> str:
    """As a shell reads it; in bash's own form if it has control characters."""
    return shlex.quote(name) if name.isprintable() else f"${name!a}"


def what_to_type(changes: Sequence[Change], message: str) -> str:
    """The git commands that keep the changes, and those that undo them, before the commit and after it."""
    made = " ".join(_quoted(change.path) for change in changes if change.old is None)
    changed = " ".join(_quoted(change.path) for change in changes if change.old is not None)
    add = f"git add -- {made} && " if made else ""
    undo = [f"git restore --staged --worktree -- {changed}"] if changed else []
    undo += [f"git rm -q --cached --ignore-unmatch -- {made} && rm -- {made}"] if made else []
    everything = " ".join(_quoted(change.path) for change in changes)
    return (
        f"to keep it:            {add}git commit -m {_quoted(message)} -- {everything}\n"
        f"to undo it before:     {' && '.join(undo)}\n"
        "to undo it afterwards: git revert HEAD, or the commit's hash once there are others"
    )
