# SPDX-License-Identifier: MIT
"""Vendor and update: what would change in a repo, refused where somebody's work could be lost."""

import difflib
from dataclasses import dataclass
from pathlib import Path

from .catalog import Adapter
from .errors import RefusalError
from .files import read, with_newlines, write_atomically
from .git import is_committed, is_under_git, merge
from .header import Header
from .lock import Lock, LockError, read_lock
from .paths import locate, lock_path
from .render import rendered_parts
from .status import Inspection, State, inspect
from .verify import undefined_names

# a shim too: that the project moved on is not ours to drop
_HAS_THEIR_WORK = frozenset({State.UNTRACKED, State.SHIM, State.EDITED, State.BOTH, State.TAMPERED, State.CONFLICT})


@dataclass(frozen=True)
class Change:
    """A file as it should become. The lock follows it, unless a conflict has to be resolved first."""

    seen: Inspection
    content: bytes
    lock: Lock
    conflict: bool = False

    @property
    def writes_file(self) -> bool:
        """Whether the file's content changes."""
        return self.content != self.seen.content

    @property
    def writes_lock(self) -> bool:
        """Whether the lock beside it changes."""
        return not self.conflict and not _has_lock(self.seen.path, self.lock)

    @property
    def diff(self) -> str:
        """The file's change, as a unified diff."""
        name = self.seen.relative
        return unified(self.seen.content, self.content, f"{name} (now)", f"{name} (new)")

    @property
    def broken(self) -> str:
        """What a merge that is clean as text got wrong as Python, in words."""
        try:
            missing = undefined_names(self.content.decode())
        except SyntaxError as error:
            return f"line {error.lineno} is no Python any more"
        return f"nobody defines {', '.join(sorted(missing))} any more" if missing else ""

    def apply(self) -> None:
        """Write what differs: the file first, since the old lock is still good for an old file, and
        a new file knows its own body.
        """
        path = self.seen.path
        if self.writes_file:
            write_atomically(path, with_newlines(self.content, crlf=self.seen.crlf))
        if self.writes_lock:
            write_atomically(lock_path(path), self.lock.encode())


def vendor(repo: Path, adapter: Adapter, path: str | None, *, force: bool) -> Change:
    """The change that puts an adapter's file into a repo. RefusalError where that could lose work."""
    seen = inspect(repo, locate(repo, adapter, path))
    header, body = rendered_parts(adapter.name)
    if seen.header is not None and seen.header.adapter == adapter.name and seen.state is State.CURRENT:
        return Change(seen, seen.content, Lock.of(seen.header, body))
    if not force:
        _refuse_to_overwrite(seen, adapter)
    if seen.content and seen.state in _HAS_THEIR_WORK:
        _refuse_unless_kept_by_git(seen, force=force)
    return Change(seen, header.encode() + body, Lock.of(header, body))


def update(seen: Inspection, *, with_merge: bool) -> Change:
    """The change that brings a vendored file up to this release, with their edits if there are any."""
    if seen.header is None or seen.state is State.CONFLICT:
        raise RefusalError(_WAY_ON[seen.state].format(path=seen.relative, note=seen.note, repo=seen.repo))
    _refuse_newer(seen)
    header, body = rendered_parts(seen.header.adapter)
    if seen.state in (State.CURRENT, State.EDITED):  # the file stays; after a resolved conflict the lock moves on
        return Change(seen, seen.content, Lock.of(seen.header, body))
    if seen.state is State.STALE:
        return Change(seen, header.encode() + body, Lock.of(header, body))
    if seen.state is State.TAMPERED or not with_merge:
        raise RefusalError(_WAY_ON[seen.state].format(path=seen.relative, note=seen.note, repo=seen.repo))
    return _merged(seen, header, body)


def _merged(seen: Inspection, header: Header, body: bytes) -> Change:
    base = seen.base
    if base is None:
        msg = (
            f"{seen.relative}: nothing here knows the file before its edits. Restore {lock_path(seen.path).name} "
            "from version control; or `adapters vendor --force`, and make the edits again."
        )
        raise RefusalError(msg)
    _refuse_unless_kept_by_git(seen, force=True)
    merged, conflict = merge(seen.body, base, body)
    return Change(seen, header.encode() + merged, Lock.of(header, body), conflict)


_WAY_ON = {
    State.UNTRACKED: "{path} is not vendored yet; run `adapters vendor NAME {repo}`",
    State.MISSING: "{path} was deleted, its lock is there; restore it, run `adapters vendor NAME {repo}`, or "
    "delete the lock too",
    State.CONFLICT: "{path} has conflict markers; resolve them, then run `adapters update` again",
    State.TAMPERED: "{path}: {note}. Restore the file and its lock from version control, or `adapters vendor --force`",
    State.EDITED: "{path} was edited; `adapters update --merge` keeps the edits, `adapters vendor --force` drops them",
    State.BOTH: "{path} was edited; `adapters update --merge` keeps the edits, `adapters vendor --force` drops them",
}


def _refuse_to_overwrite(seen: Inspection, adapter: Adapter) -> None:
    if seen.header is not None and seen.header.adapter != adapter.name:
        msg = f"{seen.relative} is the adapter {seen.header.adapter}; --force makes it {adapter.name}"
        raise RefusalError(msg)
    if seen.state in (State.EDITED, State.BOTH, State.TAMPERED, State.CONFLICT):
        base = seen.base
        edits = "" if base is None else unified(base, seen.body, "as vendored", "your edits")
        way_on = _WAY_ON[seen.state].format(path=seen.relative, note=seen.note, repo=seen.repo)
        raise RefusalError("\n".join(filter(None, [way_on, edits])))
    _refuse_newer(seen)


def _refuse_newer(seen: Inspection) -> None:
    if seen.header is not None and seen.is_newer and seen.state in (State.STALE, State.BOTH):
        msg = f"{seen.relative} was rendered by the newer {seen.header.version}; upgrade shared-distributed-tools"
        raise RefusalError(msg)


def _refuse_unless_kept_by_git(seen: Inspection, *, force: bool) -> None:
    """What nobody else has a copy of is not overwritten."""
    path, name = seen.path, seen.relative
    if not is_under_git(path.parent):
        if not force:
            msg = f"{name} is not under version control and could not be brought back; --force replaces it"
            raise RefusalError(msg)
        return
    if not is_committed(path, seen.content):
        msg = f"{name} has changes that are not committed; commit, stash or restore it first, then run this again"
        raise RefusalError(msg)


def _has_lock(path: Path, lock: Lock) -> bool:
    """By meaning: compressed bytes may differ from one zlib to the next."""
    try:
        return read(lock_path(path)) is not None and read_lock(lock_path(path)) == lock
    except LockError:
        return False


def unified(before: bytes, after: bytes, old: str, new: str) -> str:
    """A unified diff of two files' text; no text if they are equal."""
    left, right = (content.decode(errors="replace").splitlines() for content in (before, after))
    return "\n".join(difflib.unified_diff(left, right, old, new, lineterm=""))
