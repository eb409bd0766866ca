# SPDX-License-Identifier: MIT
"""Changes of several files, made so that one cut off anywhere is seen, and can be finished or undone.

The whole change, old and new contents, goes into the record first. Then file after file is replaced in
one step each. Then the record is moved on. Whoever finds a pending change in a record compares the files
with it: each is as before, as after, or somebody else's work.
"""

import os
from dataclasses import replace
from pathlib import Path

from ..errors import RefusalError, ToolError
from ..files import read, write_atomically
from .record import RECORD, FileChange, Pending, Record, write_record


def carry_out(repo: Path, record: Record, pending: Pending) -> None:
    """Make a change. One that fails is undone; one that is killed stays pending."""
    for change in pending.changes:
        place_of(repo, change.path)
    write_record(repo, replace(record, pending=pending))
    try:
        finish(repo, replace(record, pending=pending))
    except (ToolError, OSError) as error:
        try:
            undo(repo, replace(record, pending=pending))
        except (ToolError, OSError) as second:
            msg = f"{error}. What was written before could not be taken back: {second}. {describe(repo, pending)}"
            raise RefusalError(msg) from error
        msg = f"{error}; what was written before is taken back"
        raise RefusalError(msg) from error


def finish(repo: Path, record: Record) -> None:
    """Bring a pending change to its end."""
    pending = _pending(record)
    _refuse_other_work(repo, pending)
    for change in pending.changes:
        _put(repo, change)
    stages = (*record.stages, pending.done) if pending.forward else record.stages[:-1]
    write_record(repo, replace(record, stages=stages, pending=None))


def undo(repo: Path, record: Record) -> None:
    """Take a pending change back."""
    pending = _pending(record)
    _refuse_other_work(repo, pending)
    for change in reversed(pending.changes):
        _put(repo, change.back)
    write_record(repo, replace(record, pending=None))


def describe(repo: Path, pending: Pending) -> str:
    """What was cut off, how far it came, and the two ways on."""
    what = f"{'migration to' if pending.forward else 'rollback from'} {pending.done.stage}"
    return f"{repo}: a {what} was cut off: {progress(repo, pending)}"


def progress(repo: Path, pending: Pending) -> str:
    """How far a pending change came, and the two ways on."""
    written = sum(read(place_of(repo, change.path)) == change.new for change in pending.changes)
    ways = f"`adapters migrate --to {pending.done.stage} --write`", "`adapters rollback --write`"
    finishes, undoes = ways if pending.forward else ways[::-1]
    return f"{written} of {len(pending.changes)} files written; {finishes} finishes it, {undoes} undoes it"


def _pending(record: Record) -> Pending:
    assert record.pending is not None
    return record.pending


def _refuse_other_work(repo: Path, pending: Pending) -> None:
    for change in pending.changes:
        if read(place_of(repo, change.path)) not in (change.old, change.new):
            msg = (
                f"{change.path} is neither as it was before the change that is under way nor as it becomes: "
                f"restore it from version control (or put your edit aside), then run this again. {RECORD} has both."
            )
            raise RefusalError(msg)


def _put(repo: Path, change: FileChange) -> None:
    path = place_of(repo, change.path)
    if change.new is None:
        path.unlink(missing_ok=True)
        return
    if read(path) != change.new:
        write_atomically(path, change.new)
    if change.mode is not None and path.stat().st_mode & 0o777 != change.mode:
        path.chmod(change.mode)


def place_of(repo: Path, path: str) -> Path:
    """A file's full path, for one that lies in the repo and leads nowhere else: a record may have been edited."""
    full = Path(os.path.normpath(repo / path))
    if not full.is_relative_to(repo) or full == repo or ".git" in full.relative_to(repo).parts:
        msg = f"{path} is outside {repo}; nothing is written there"
        raise RefusalError(msg)
    for part in (full, *full.parents[: len(full.relative_to(repo).parts) - 1]):
        if part.is_symlink():
            msg = f"{part} is a symlink: what it points to would not be replaced. Put a plain file or folder there"
            raise RefusalError(msg)
    if full.is_dir():
        msg = f"{full} is a folder; move it away"
        raise RefusalError(msg)
    return full
