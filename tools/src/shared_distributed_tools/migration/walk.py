# SPDX-License-Identifier: MIT
"""Which files of a tree are looked at, and what is passed over and why."""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .definitions import NotTextError

LARGEST = 4 * 2**20  # bytes; a larger file is data
_SUFFIXES = (".py", ".pyw")
_NEVER = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "node_modules"}
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, order=True)
class Passed:
    """A file or folder that was not looked at, or not wholly."""

    path: str
    why: str
    may_hide_a_copy: bool = True


@dataclass
class Walked:
    """The files of some paths: each once, sorted, with the PATH that it was found under."""

    files: list[tuple[Path, Path]] = field(default_factory=list)  # file, root
    passed: list[Passed] = field(default_factory=list)


def walk(paths: Iterable[Path]) -> Walked:
    """Every Python file under some paths; one that is given itself whatever its name."""
    walked = Walked()
    seen: set[Path] = set()
    roots = sorted(set(paths), key=lambda path: (len(path.resolve().parts), path))  # of two, the outer one first
    for root in roots:
        found = _below(root, roots, walked) if root.is_dir() else [root]
        for file in found:
            real = file.resolve()
            if real not in seen:
                seen.add(real)
                walked.files.append((file, root if root.is_dir() else root.parent))
    return walked


def _below(root: Path, roots: list[Path], walked: Walked) -> list[Path]:
    def unreadable(error: OSError) -> None:
        walked.passed.append(Passed(str(error.filename), f"cannot be read: {error.strerror}"))

    # asked for directly, installed packages are looked at
    is_installed = bool(_INSTALLED & set(root.resolve().parts)) or os.path.lexists(root / "pyvenv.cfg")
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root, onerror=unreadable):
        here = Path(folder)
        kept = []
        for name in sorted(subfolders):
            path = here / name
            if path.is_symlink():
                _note_link(path, roots, walked)
            elif not is_installed and (name in _INSTALLED or os.path.lexists(path / "pyvenv.cfg")):
                why = "installed packages; give the folder itself to have it scanned"
                walked.passed.append(Passed(path.as_posix(), why, may_hide_a_copy=False))
            elif name not in _NEVER:
                kept.append(name)
        subfolders[:] = kept
        for name in sorted(names):
            path = here / name
            if name.endswith(_SUFFIXES):
                if path.is_symlink():
                    _note_link(path, roots, walked)
                else:
                    found.append(path)
    return found


def _note_link(path: Path, roots: list[Path], walked: Walked) -> None:
    """Links are not followed: what they lead to is looked at where it is, or lies outside."""
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a loop, before Python 3.13
        walked.passed.append(Passed(path.as_posix(), "a link that leads nowhere", may_hide_a_copy=False))
        return
    if not any(target.is_relative_to(root.resolve()) for root in roots):
        walked.passed.append(Passed(path.as_posix(), "a link that leads out of what is scanned", may_hide_a_copy=False))


def read_file(path: Path) -> bytes:
    """A plain file's bytes. NotTextError for what is none or is too large; OSError as it comes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise NotTextError("not a plain file")
    if status.st_size > LARGEST:
        msg = f"larger than {LARGEST // 2**20} MiB"
        raise NotTextError(msg)
    return path.read_bytes()
