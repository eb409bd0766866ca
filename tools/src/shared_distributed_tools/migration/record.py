# SPDX-License-Identifier: MIT
"""The record of a migration: one JSON file at the repo's root, replaced in one step.

    stages   those done, in order: each file's hash before and after, and its old content, compressed
    pending  a change under way: written before the first file changes, taken out after the last
    parity   results of `adapters parity`, the latest for each file and adapter

With it a stage can be undone byte for byte, and a change that was cut off is seen by whoever comes next.
"""

import base64
import json
import zlib
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import ToolError
from ..files import read, write_atomically
from ..header import hash_of

RECORD = ".adapters.json"
_FORMAT = "shared-distributed-tools migration 1"


class RecordError(ToolError):
    """A record that cannot be read, or whose contents do not have the hashes it gives."""


@dataclass(frozen=True)
class FileChange:
    """One file before and after; None where there is no file."""

    path: str  # relative to the repo, with forward slashes
    old: bytes | None
    new: bytes | None
    mode: int | None = None  # the old file's permissions, for when it has to be made again

    @property
    def back(self) -> "FileChange":
        """The same change, undone."""
        return FileChange(self.path, self.new, self.old, self.mode)


@dataclass(frozen=True)
class Trace:
    """What is kept of a file's change once it is made: enough to see it, and to undo it."""

    path: str
    before: str | None  # sha256
    after: str | None
    old: bytes | None
    mode: int | None = None

    @classmethod
    def of(cls, change: FileChange) -> "Trace":
        """A change's trace."""
        return cls(change.path, hash_or_none(change.old), hash_or_none(change.new), change.old, change.mode)


@dataclass(frozen=True)
class Done:
    """One stage that a repo has reached."""

    stage: str
    version: str  # of the core
    when: str
    files: tuple[Trace, ...]


@dataclass(frozen=True)
class Pending:
    """A change that was begun. Forward it makes `done`; backward it undoes it."""

    done: Done
    forward: bool
    changes: tuple[FileChange, ...]


@dataclass(frozen=True)
class Record:
    """Everything the file says."""

    adapter: str = ""
    copy: str = ""  # the file that the migration is about
    stages: tuple[Done, ...] = ()
    pending: Pending | None = None
    parity: tuple[dict[str, Any], ...] = ()

    def encode(self) -> bytes:
        """As JSON."""
        fields: dict[str, Any] = {"format": _FORMAT, "adapter": self.adapter, "copy": self.copy}
        fields["stages"] = [_done_as_json(done) for done in self.stages]
        if self.pending is not None:
            fields["pending"] = {
                "done": _done_as_json(self.pending.done),
                "forward": self.pending.forward,
                "changes": [
                    {"path": one.path, "old": _pack(one.old), "new": _pack(one.new), "mode": one.mode}
                    for one in self.pending.changes
                ],
            }
        fields["parity"] = list(self.parity)
        return (json.dumps(fields, indent=2) + "\n").encode()


def read_record(repo: Path) -> Record:
    """A repo's record; an empty one where there is none. RecordError where it is damaged."""
    content = read(repo / RECORD)
    if content is None:
        return Record()
    try:
        fields = json.loads(content)
        if fields["format"] != _FORMAT:
            msg = f"{repo / RECORD} is in the format {fields['format']!r}; upgrade shared-distributed-tools"
            raise RecordError(msg)
        pending = fields.get("pending")
        record = Record(
            str(fields["adapter"]),
            str(fields["copy"]),
            tuple(_done_from_json(one) for one in fields["stages"]),
            pending and Pending(_done_from_json(pending["done"]), bool(pending["forward"]), _changes(pending)),
            tuple(dict(entry) for entry in fields["parity"]),
        )
        intact = all(trace.before == hash_or_none(trace.old) for done in record.stages for trace in done.files)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        msg = f"{repo / RECORD} is damaged; restore it from version control"
        raise RecordError(msg) from error
    if not intact:
        msg = f"{repo / RECORD} was edited: a file in it does not have the hash given; restore it from version control"
        raise RecordError(msg)
    return record


def write_record(repo: Path, record: Record) -> None:
    """Replace a repo's record in one step; one that says nothing is deleted."""
    if record.stages or record.pending or record.parity:
        write_atomically(repo / RECORD, record.encode())
    else:
        (repo / RECORD).unlink(missing_ok=True)


def add_parity(repo: Path, entry: dict[str, object]) -> None:
    """Keep a result of `adapters parity`, in place of an earlier one for the same file and adapter.

    entry: `file` (its path in the repo), `adapter`, `sha256` (of the file), `result` ("same", "better" or
    "different"), and whatever else is worth keeping; `when` is added.
    """
    record = read_record(repo)
    about = (entry.get("file"), entry.get("adapter"))
    others = [one for one in record.parity if (one.get("file"), one.get("adapter")) != about]
    write_record(repo, replace(record, parity=(*others, {**entry, "when": now()})))


def now() -> str:
    """This moment, to the second, as records give it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def hash_or_none(content: bytes | None) -> str | None:
    """A file's hash; None where there is no file."""
    return None if content is None else hash_of(content)


def _pack(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(zlib.compress(content, 9)).decode()


def _unpack(packed: str | None) -> bytes | None:
    return None if packed is None else zlib.decompress(base64.b64decode(packed))


def _changes(pending: dict[str, Any]) -> tuple[FileChange, ...]:
    return tuple(
        FileChange(one["path"], _unpack(one["old"]), _unpack(one["new"]), one["mode"]) for one in pending["changes"]
    )


def _done_as_json(done: Done) -> dict[str, Any]:
    files = [{**vars(trace), "old": _pack(trace.old)} for trace in done.files]
    return {"stage": done.stage, "version": done.version, "when": done.when, "files": files}


def _done_from_json(fields: dict[str, Any]) -> Done:
    traces = (Trace(**{**one, "old": _unpack(one["old"])}) for one in fields["files"])
    return Done(fields["stage"], fields["version"], fields["when"], tuple(traces))
