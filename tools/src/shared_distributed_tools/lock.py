# SPDX-License-Identifier: MIT
"""The lock beside a vendored file: the body as it was rendered, for merges to start from.

With it in the downstream repo a three-way merge needs neither a network nor an older release. A check
needs no lock: the file's own header is enough.
"""

import base64
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from .errors import ToolError
from .header import Header, hash_of

LOCK_SUFFIX = ".lock"
_FORMAT = "shared-distributed-tools 1"


class LockError(ToolError):
    """A lock that cannot be read, or whose body does not have the hash it gives."""


@dataclass(frozen=True)
class Lock:
    """What was vendored, before anybody's edits."""

    adapter: str
    version: str  # of the core
    body: bytes

    @classmethod
    def of(cls, header: Header, body: bytes) -> "Lock":
        """The lock for a file just rendered."""
        return cls(header.adapter, header.version, body)

    def encode(self) -> bytes:
        """As JSON, the body compressed."""
        fields = {
            "format": _FORMAT,
            "adapter": self.adapter,
            "version": self.version,
            "body_sha256": hash_of(self.body),
            "body": base64.b64encode(zlib.compress(self.body, 9)).decode(),
        }
        return (json.dumps(fields, indent=2) + "\n").encode()


def read_lock(path: Path) -> Lock | None:
    """The lock at a path, if there is one. LockError if it is damaged."""
    try:
        fields = json.loads(path.read_bytes())
        lock = Lock(fields["adapter"], fields["version"], zlib.decompress(base64.b64decode(fields["body"])))
        intact = fields["format"] == _FORMAT and fields["body_sha256"] == hash_of(lock.body)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        msg = f"the lock {path.name} is damaged"
        raise LockError(msg) from error
    if not intact:
        msg = f"the lock {path.name} was edited"
        raise LockError(msg)
    return lock


def is_lock(path: Path) -> bool:
    """Whether a file is one of our locks, intact or not: other programs have files of that name too."""
    try:
        return _FORMAT.split()[0].encode() in path.read_bytes()[:256]
    except OSError:
        return False
