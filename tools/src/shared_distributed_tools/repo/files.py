# SPDX-License-Identifier: MIT
"""Files read with a bound, and written so that a crash at any moment leaves the old file or the new one."""

import errno
import os
import stat
from difflib import SequenceMatcher
from pathlib import Path
from secrets import token_hex

from ..errors import RefusalError

LARGEST = 4 * 2**20  # bytes; a larger file is data
_TEMPORARY = ".adapters-{}.tmp"


class UnreadableError(RefusalError):
    """A file that cannot be read, and why."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}; put a readable plain file there")
        self.why = why


def checked(repo: Path, path: str | Path) -> Path:
    """A file's full path inside a repo, existing or not. RefusalError for what may not be written to, whatever it is.

    repo: with symlinks resolved. Only a plain file may be replaced: `read` says so of others.
    """
    full = Path(os.path.normpath(repo / path))
    inside = full.relative_to(repo).parts if full.is_relative_to(repo) else ()
    if not inside or ".git" in map(str.lower, inside):
        msg = f"{path} is outside {repo}; give a path inside the repo"
        raise RefusalError(msg)
    if Path(os.path.realpath(full)) != full:
        msg = f"{full} is or is below a symlink: what that points to would not be replaced. Put a plain file there"
        raise RefusalError(msg)
    if not os.path.isdir(full.parent):  # noqa: PTH112 (`Path.is_dir` raises for a folder without permission)
        msg = f"{full.parent} is not a folder; make it first, or give another --path"
        raise RefusalError(msg)
    return full


def read(path: Path) -> bytes | None:
    """A plain file's bytes, or None where there is no file. UnreadableError for a device, a huge file and the like."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableError(path, "not a plain file")
        with path.open("rb", buffering=0) as stream:
            if os.name != "nt":  # some files of the system are plain, and wait for ever
                os.set_blocking(stream.fileno(), False)
            content = b""
            while len(content) <= LARGEST and (more := stream.read(LARGEST + 1 - len(content))):
                content += more
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(path, f"cannot be read: {error.strerror}") from error
    if len(content) > LARGEST:
        raise UnreadableError(path, f"larger than {LARGEST / 2**20:.0f} MiB")
    return content


def write_atomically(path: Path, content: bytes, expected: bytes | None, scratch: Path | None = None) -> None:
    """Replace a file in one step, keeping its permissions; make it where there is none.

    expected: what the file held when the change was shown, None for no file. RefusalError if it holds something
    else by now: somebody saved it in between.
    scratch: the folder for the temporary file; beside the file if there is none, or it is on another file system.
    """
    for folder in (scratch or path.parent, path.parent):
        temporary = folder / _TEMPORARY.format(token_hex(8))
        try:
            for left in folder.glob(_TEMPORARY.format("*")):  # by a run that was interrupted
                left.unlink(missing_ok=True)
            with temporary.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            if path.exists():
                temporary.chmod(path.stat().st_mode & 0o777)
            if read(path) != expected:  # the last step before the replacement
                msg = f"{path} was changed while this ran, and is left as it is; run this again"
                raise RefusalError(msg)
            temporary.replace(path)
            break
        except OSError as error:
            if error.errno != errno.EXDEV or folder == path.parent:
                msg = f"{path} cannot be written to: {error.strerror}; it is as it was"
                raise RefusalError(msg) from error
        finally:
            temporary.unlink(missing_ok=True)
    if os.name != "nt":  # the rename itself has to reach the disk; on Windows folders cannot be opened
        descriptor = os.open(path.parent, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def with_lf(content: bytes) -> bytes:
    """A text's lines with LF, which is what is hashed, compared and merged."""
    return content.replace(b"\r\n", b"\n")


def like(content: bytes, model: bytes | None) -> bytes:
    """LF content with the line ends that another version of the file has: a new line has those of most lines."""
    if model is None or b"\r\n" not in model:
        return content
    is_crlf = 2 * model.count(b"\r\n") > model.count(b"\n")
    if model.count(b"\r\n") == model.count(b"\n"):
        return content.replace(b"\n", b"\r\n")
    old, new = _lines(model), _lines(content)
    matcher = SequenceMatcher(None, [with_lf(line) for line in old], new)
    lines: list[bytes] = []
    for how, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if how == "equal":
            lines += old[old_start:old_end]
        else:
            lines += [line.replace(b"\n", b"\r\n") if is_crlf else line for line in new[new_start:new_end]]
    return b"".join(lines)


def _lines(content: bytes) -> list[bytes]:
    """Lines with their ends; a lone carriage return ends none."""
    return [line + b"\n" for line in content.split(b"\n")[:-1]] + content.split(b"\n")[-1:]
