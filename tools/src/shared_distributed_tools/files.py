# SPDX-License-Identifier: MIT
"""Files read whole, and written so that a crash at any moment leaves the old file or the new one."""

import os
import tempfile
from pathlib import Path

from .errors import RefusalError


def read(path: Path) -> bytes | None:
    """A file's bytes, or None where there is no file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}; make it readable first"
        raise RefusalError(msg) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, keeping its permissions."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        msg = f"{path.parent} cannot be written to: {error.strerror}; nothing was changed"
        raise RefusalError(msg) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(_mode_for(path))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _mode_for(path: Path) -> int:
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)  # the only way to ask for it is to set it
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    """The rename itself has to reach the disk; where folders cannot be opened (Windows) it does so alone."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_crlf(content: bytes) -> bool:
    """Whether every line ends in CRLF, as in a Windows checkout; one such line alone is an edit."""
    return b"\n" in content and content.count(b"\r\n") == content.count(b"\n")


def with_newlines(content: bytes, *, crlf: bool) -> bytes:
    """LF content, as a file that has CRLF everywhere wants it."""
    return content.replace(b"\n", b"\r\n") if crlf else content
