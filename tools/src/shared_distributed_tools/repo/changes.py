# SPDX-License-Identifier: MIT
"""What a command would write into a repo. One principle for all of it:

only over files whose content git's HEAD holds, shown first, and git undoes it.
"""

import difflib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import RefusalError
from ..terminal import echo, one_line, print_diff
from .files import checked, with_lf, write_atomically
from .git import Checkout

_CONTEXT = 3  # lines around a change that a diff shows
_HUNK = re.compile(r"(?<=[ ][-+])\d+")  # where a hunk begins, in `@@ -1,7 +1,8 @@`


@dataclass(frozen=True)
class Change:
    """One file, before and after."""

    path: str  # in the repo, with forward slashes
    old: bytes | None  # None: there is no such file yet
    new: bytes


def unified(before: bytes, after: bytes, old: str, new: str) -> str:
    """A unified diff of two texts; empty if they are equal but for line ends."""
    left, right = (with_lf(content).decode(errors="replace").splitlines() for content in (before, after))
    # what both begin and end with is set aside: among many lines that are alike, difflib would find nothing equal
    start = _in_common(left, right)
    end = _in_common(left[start:][::-1], right[start:][::-1])
    skipped, kept = max(start - _CONTEXT, 0), max(end - _CONTEXT, 0)
    some, others = left[skipped : len(left) - kept], right[skipped : len(right) - kept]
    lines = list(difflib.unified_diff(some, others, old, new, lineterm=""))
    for number, line in enumerate(lines):
        if line.startswith("@@ "):
            lines[number] = _HUNK.sub(lambda found: str(int(found[0]) + skipped), line)
    return "\n".join(lines)


def _in_common(left: list[str], right: list[str]) -> int:
    """How many lines two lists begin with alike."""
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return number
    return min(len(left), len(right))


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


def refuse_unless_held(checkout: Checkout, repo: Path, changes: Sequence[Change]) -> None:
    """RefusalError, with the command that helps, unless git brings back the very bytes of each file."""
    for change in changes:
        why = _why_not_held(checkout, checked(repo, change.path), change)
        if why:
            msg = f"{change.path} {why}"
            raise RefusalError(msg)


def _why_not_held(checkout: Checkout, path: Path, change: Change) -> str:
    """Why git would not bring a file back, and what helps; empty if it would."""
    name = _quoted(change.path)
    other = checkout.belongs_to(path)
    if other is not None:
        return f"is in a repository of its own, {other}; give that one as REPO"
    conversion = checkout.conversion(path)
    if conversion:
        return f"is not stored in git as it is here ({conversion} in .gitattributes); take that away, and commit"
    mark = checkout.hidden_change(path) if change.old is not None else ""
    if mark:
        return f"is marked {mark}, so that git passes over changes; `git update-index --no-{mark} -- {name}` clears it"
    replaced = checkout.replaced(path)
    if replaced:
        return f"would come back as another content, which replaces it in git; `git replace -d {replaced}` ends that"
    held = checkout.committed(path)
    if change.old is None:
        if held is None:
            return ""
        return f"is committed, but not here; `git restore -- {name}` or `git sparse-checkout disable` brings it back"
    if not (os.access(path, os.W_OK) and path.stat().st_mode & 0o222):
        return f"is read-only; `chmod u+w -- {name}` if it may be replaced"
    if held is None:
        return f"is not committed; `git add -- {name} && git commit -m 'as it was' -- {name}` keeps it"
    if with_lf(change.old) != with_lf(held) or checkout.is_staged(path):
        keep, drop = f"git commit -- {name}", f"git restore --staged --worktree -- {name}"
        return f"has changes that are not committed; `{keep}` keeps them, `{drop}` drops them"
    return ""


def carry_out(repo: Path, changes: Sequence[Change], message: str, *, write: bool) -> None:
    """Refuse what git could not undo; show the rest, write it if asked to, and say what to type next.

    Each file is written in one step. A run that is stopped says what it has changed; where it cannot, it leaves a
    dirty tree, which git brings back, and perhaps a temporary file in the git directory, which the next run removes.
    """
    checkout = checkout_of(repo)
    refuse_unless_held(checkout, repo, changes)
    for change in changes:
        name = one_line(change.path)
        print_diff(unified(change.old or b"", change.new, "(no file)" if change.old is None else name, name))
    if not write:
        echo(f"{_count(changes)} would change; --write makes the change", err=True)
        return
    try:
        for change in changes:
            write_atomically(checked(repo, change.path), change.new, change.old, checkout.git_dir)
    except BaseException:
        _say_what_is_changed(repo, changes)
        raise
    echo(f"{_count(changes)} changed. In {one_line(str(repo))}:\n{what_to_type(changes, message)}", err=True)


def _say_what_is_changed(repo: Path, changes: Sequence[Change]) -> None:
    """After a run that was stopped, by whatever: what it has written, and how to undo that."""
    written = []
    for change in changes:
        try:
            content = (repo / change.path).read_bytes()
        except OSError:
            continue
        if content == change.new != change.old:
            written.append(change)
    if not written:
        echo("stopped; no file is changed", err=True)
        return
    echo(f"stopped; {len(written)} of {_count(changes)} changed. In {one_line(str(repo))}:", err=True)
    for change in written:
        echo(one_line(f"  {change.path}"), err=True)
    echo(f"to undo it: {_undo(written)}", err=True)


def _count(changes: Sequence[Change]) -> str:
    return "1 file" if len(changes) == 1 else f"{len(changes)} files"


def _quoted(name: str) -> str:
    """As a shell reads it; in bash's own form if it has control characters."""
    return shlex.quote(name) if name.isprintable() else f"${name!a}"


def what_to_type(changes: Sequence[Change], message: str) -> str:
    """The git commands that keep the changes, and those that undo them, before the commit and after it."""
    made = _names(changes, new=True)
    add = f"git add -f -- {made} && " if made else ""  # where the repo ignores the file, git would refuse it
    everything = " ".join(_quoted(change.path) for change in changes)
    return (
        f"to keep it:            {add}git commit -m {_quoted(message)} -- {everything}\n"
        f"to undo it before:     {_undo(changes)}\n"
        "to undo it afterwards: git revert HEAD, or the commit's hash once there are others"
    )


def _undo(changes: Sequence[Change]) -> str:
    made, changed = _names(changes, new=True), _names(changes, new=False)
    commands = []
    if changed:
        commands.append(f"git restore --staged --worktree -- {changed}")
    if made:
        commands.append(f"git rm -q --cached --ignore-unmatch -- {made} && rm -- {made}")
    return " && ".join(commands)


def _names(changes: Sequence[Change], *, new: bool) -> str:
    """The files that are new, or those that are not, as a shell reads them."""
    return " ".join(_quoted(change.path) for change in changes if (change.old is None) == new)
