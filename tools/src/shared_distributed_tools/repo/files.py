# SPDX-License-Identifier: MIT
"""Files read whole, and written so that a crash at any moment leaves the old file or the new one."""

import os
import stat
import tempfile
from pathlib import Path

from ..errors import RefusalError


def repo_root(repo: Path) -> Path:
    """A repo's folder, with symlinks above and at it resolved."""
    if not repo.is_dir():
        msg = f"{repo} is not a folder; give the root of the downstream repo"
        raise RefusalError(msg)
    return repo.resolve()


def checked(repo: Path, path: str | Path) -> Path:
    """A file's full path inside a repo, existing or not. RefusalError for anything that may not be written."""
    full = Path(os.path.normpath(repo / path))
    if not full.is_relative_to(repo) or full == repo or ".git" in full.relative_to(repo).parts:
        msg = f"{path} is outside {repo}; give a path inside the repo"
        raise RefusalError(msg)
    inside = full.relative_to(repo)
    for part in (*reversed(full.parents[: len(inside.parts) - 1]), full):
        if part.is_symlink():
            msg = f"{part} is a symlink: what it points to would not be replaced. Put a plain file or folder there"
            raise RefusalError(msg)
    if not full.parent.is_dir():
        msg = f"{full.parent} is not a folder; make it first, or give another --path"
        raise RefusalError(msg)
    if full.exists() and not stat.S_ISREG(full.stat().st_mode):
        what = "a folder" if full.is_dir() else "not a plain file"
        msg = f"{full} is {what}; move it away, or give another --path"
        raise RefusalError(msg)
    return full


def read(path: Path) -> bytes | None:
    """A file's bytes, or None where there is no file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}; make it readable first"
        raise RefusalError(msg) from error


def write_atomically(path: Path, content: bytes, expected: bytes | None) -> None:
    """Replace a file in one step, keeping its permissions; make it where there is none.

    expected: what the file held when the change was shown, None for no file. RefusalError if it holds something
    else by now: somebody saved it in between.
    """
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
        if read(path) != expected:
            msg = f"{path} was changed while this ran, and is left as it is; run this again"
            raise RefusalError(msg)
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


def with_lf(content: bytes) -> bytes:
    """A text's lines with LF, which is what is hashed, compared and merged."""
    return content.replace(b"\r\n", b"\n")


def like(content: bytes, model: bytes | None) -> bytes:
    """LF content with the line ends that another version of the file has, by majority."""
    crlf = model is not None and 2 * model.count(b"\r\n") > model.count(b"\n")
    return content.replace(b"\n", b"\r\n") if crlf else content
