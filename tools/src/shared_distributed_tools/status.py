# SPDX-License-Identifier: MIT
"""What a vendored file looks like now: current, stale, edited, both, or something else. Reads only."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from packaging.version import InvalidVersion, Version

from .catalog import ADAPTERS
from .files import is_crlf, read
from .header import Header, TamperedError, hash_of, looks_generated, split
from .lock import Lock, LockError, read_lock
from .paths import checked, discover, lock_path
from .render import rendered_parts
from .shim import shim_of


class State(Enum):
    """A vendored file's state, the exit code of `adapters check` for it, and what it means."""

    CURRENT = "current", 0, "as this release renders it"
    SHIM = "shim", 0, "no vendored file any more: re-exports from the installed adapter"
    STALE = "stale", 10, "unedited, but this release renders something else"
    EDITED = "locally edited", 11, "edited here; without the edits, as this release renders it"
    BOTH = "stale and locally edited", 12, "edited here, and this release renders something else"
    UNTRACKED = "untracked", 13, "the file an adapter replaces, not vendored yet"
    TAMPERED = "tampered", 14, "header or lock not as they were written"
    CONFLICT = "conflict", 15, "conflict markers of an update, not resolved yet"
    MISSING = "missing", 16, "deleted, but its lock is here: restore it, or delete the lock too"

    def __init__(self, label: str, exit_code: int, meaning: str) -> None:
        self.label = label
        self.exit_code = exit_code
        self.meaning = meaning


@dataclass(frozen=True)
class Inspection:
    """One file of a repo. `content` has LF newlines, whatever the file has."""

    repo: Path
    path: Path
    state: State
    note: str = ""
    content: bytes = b""
    crlf: bool = False
    header: Header | None = None
    body: bytes = b""
    lock: Lock | None = None

    @property
    def relative(self) -> str:
        """The file's path in the repo."""
        return self.path.relative_to(self.repo).as_posix()

    @property
    def base(self) -> bytes | None:
        """The body as it was rendered, before any edit; None if nothing here knows it."""
        if self.header is None:
            return None
        candidates = [self.body, self.lock.body if self.lock else b"", rendered_parts(self.header.adapter)[1]]
        return next((body for body in candidates if hash_of(body) == self.header.body), None)

    @property
    def is_newer(self) -> bool:
        """Whether the file was rendered by a later release than this one."""
        return self.header is not None and _is_newer(self.header, rendered_parts(self.header.adapter)[0])


def inspect_repo(repo: Path) -> list[Inspection]:
    """Every vendored file of a repo."""
    return [inspect(repo, path) for path in discover(repo)]


def inspect(repo: Path, path: Path) -> Inspection:
    """One file, judged by itself; by the lock too where there is one."""
    checked(repo, path)
    raw = read(path)
    try:
        lock, lock_problem = read_lock(lock_path(path)), ""
    except LockError as error:
        lock, lock_problem = None, str(error)
    if raw is None:
        has_lock = lock is not None or lock_problem
        state, note = (State.MISSING, "") if has_lock else (State.UNTRACKED, "no file here")
        return Inspection(repo, path, state, note)

    crlf = is_crlf(raw)
    content = raw.replace(b"\r\n", b"\n") if crlf else raw
    if not looks_generated(content):
        if lock or lock_problem:
            return Inspection(repo, path, State.TAMPERED, "the header is gone", content, crlf, lock=lock)
        adapter = shim_of(content)
        note = f"the code comes from {adapter.distribution}; see `adapters status`" if adapter else ""
        return Inspection(repo, path, State.SHIM if adapter else State.UNTRACKED, note, content, crlf)
    try:
        header, body = split(content)
    except TamperedError as error:
        return Inspection(repo, path, State.TAMPERED, str(error), content, crlf, lock=lock)
    if header.adapter not in ADAPTERS:
        note = f"this release has no adapter {header.adapter}; upgrade shared-distributed-tools"
        return Inspection(repo, path, State.TAMPERED, note, content, crlf, lock=lock)
    state, note = _judge(header, body, lock, lock_problem)
    return Inspection(repo, path, state, note, content, crlf, header, body, lock)


def _judge(header: Header, body: bytes, lock: Lock | None, lock_problem: str) -> tuple[State, str]:
    ours, _ = rendered_parts(header.adapter)
    stale = header.body != ours.body  # by content: a new version that renders the same is no reason to touch a file
    edited = hash_of(body) != header.body
    unfinished = lock is not None and hash_of(lock.body) != header.body
    if lock_problem:
        return State.TAMPERED, lock_problem
    if unfinished and stale:
        return State.TAMPERED, "the header and the lock name different bodies"
    if edited and has_markers(body):
        return State.CONFLICT, "resolve the markers, then run `adapters update`"
    note = f"rendered by the newer {header.version}" if stale and _is_newer(header, ours) else ""
    note = "run `adapters update` to bring the lock up to date" if unfinished else note
    by_signs = {
        (False, False): State.CURRENT,
        (True, False): State.STALE,
        (False, True): State.EDITED,
        (True, True): State.BOTH,
    }
    return by_signs[stale, edited], note


def has_markers(body: bytes) -> bool:
    """Whether a merge's conflict markers are left."""
    return any(line.startswith((b"<<<<<<< ", b">>>>>>> ")) for line in body.split(b"\n"))


def _is_newer(header: Header, ours: Header) -> bool:
    try:
        return Version(header.version) > Version(ours.version)
    except InvalidVersion:
        return False
