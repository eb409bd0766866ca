# SPDX-License-Identifier: MIT
"""Which file of a repo is meant, and whether it is safe to touch."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .catalog import ADAPTERS, Adapter
from .errors import RefusalError
from .header import looks_generated
from .lock import LOCK_SUFFIX, is_lock
from .shim import shim_of

_HEAD = 4096  # bytes: a header with room for whatever was put above it, or a whole shim
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
_BUILT = frozenset({"build", "dist"})  # at the top only: further down they are somebody's packages


def repo_root(repo: Path) -> Path:
    """A repo's folder, with symlinks above and at it resolved."""
    if not repo.is_dir():
        msg = f"{repo} is not a folder; give the root of the downstream repo"
        raise RefusalError(msg)
    return repo.resolve()


def locate(repo: Path, adapter: Adapter, path: str | None) -> Path:
    """The file that an adapter replaces: the one asked for, else where one of the known layouts has it."""
    if path is not None:
        return checked(repo, path)
    found = _known(repo, adapter)
    if not found:
        package = adapter.target.partition("/")[0]
        flat = f", nor a distributed.py beside {adapter.flat_beside}" if adapter.flat_beside else ""
        msg = f"{repo} has no package {package}{flat}; say where the file goes with --path"
        raise RefusalError(msg)
    if len(found) > 1:
        msg = f"{repo} could mean {' or '.join(found)}; say which with --path"
        raise RefusalError(msg)
    return checked(repo, found[0])


def adapters_that_fit(repo: Path) -> list[Adapter]:
    """The adapters whose layout a repo has."""
    return [adapter for adapter in ADAPTERS.values() if _known(repo, adapter)]


def _known(repo: Path, adapter: Adapter) -> list[str]:
    package = repo / adapter.target.partition("/")[0]
    found = [adapter.target] if (package / "__init__.py").is_file() else []
    flat = Path(adapter.target).name
    if adapter.flat_beside and (repo / adapter.flat_beside).is_file() and os.path.lexists(repo / flat):
        found.append(flat)
    return found


def checked(repo: Path, path: str | Path) -> Path:
    """A Python file's full path inside a repo, existing or not. RefusalError for anything else."""
    full = Path(os.path.normpath(repo / path))
    if not full.is_relative_to(repo) or full == repo:
        msg = f"{path} is outside {repo}; give a path inside the repo"
        raise RefusalError(msg)
    inside = full.relative_to(repo)
    if full.suffix != ".py" or ".git" in inside.parts:
        msg = f"{path} is not a place for a Python module; give a path that ends in .py"
        raise RefusalError(msg)
    for part in (*reversed(full.parents[: len(inside.parts) - 1]), full, lock_path(full)):
        if part.is_symlink():
            msg = f"{part} is a symlink: what it points to would not be replaced. Put a plain file or folder there"
            raise RefusalError(msg)
    if not full.parent.is_dir():
        msg = f"{full.parent} is not a folder; make it first, or give another --path"
        raise RefusalError(msg)
    for file in (full, lock_path(full)):
        if file.exists() and not stat.S_ISREG(file.stat().st_mode):
            msg = f"{file} is {'a folder' if file.is_dir() else 'no plain file'}; move it away, or give another --path"
            raise RefusalError(msg)
    return full


def lock_path(file: Path) -> Path:
    """The lock beside a vendored file."""
    return file.with_name(file.name + LOCK_SUFFIX)


def discover(repo: Path) -> list[Path]:
    """Every file of a repo that is or was vendored: by its header, by the lock beside it, or as a shim.

    Where there is none, the files that an adapter would replace: these are still untracked.
    """
    found: set[Path] = set()
    for file in files_of(repo):
        if file.name.endswith(".py" + LOCK_SUFFIX) and is_lock(file):
            found.add(file.with_name(file.name.removesuffix(LOCK_SUFFIX)))
        elif file.name.endswith(".py") and _is_ours(file):
            found.add(file)
    if not found:
        targets = (repo / path for adapter in adapters_that_fit(repo) for path in _known(repo, adapter))
        found = {target for target in targets if os.path.lexists(target)}
    return sorted(found)


def files_of(repo: Path) -> Iterator[Path]:
    """Every plain file of a repo, sorted; without environments, builds and hidden folders."""
    for folder, subfolders, files in os.walk(repo):
        here = Path(folder)
        skipped = _SKIPPED | _BUILT if here == repo else _SKIPPED
        # os.path's question is plainly answered in a folder that may not be entered, where Path's raises
        subfolders[:] = sorted(
            name
            for name in subfolders
            if not (name.startswith(".") or name in skipped or os.path.lexists(here / name / "pyvenv.cfg"))
        )
        for file in (here / name for name in sorted(files)):
            if file.is_file() and not file.is_symlink():
                yield file


def _is_ours(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror}; make it readable first"
        raise RefusalError(msg) from error
    return looks_generated(head) or shim_of(head) is not None
