# SPDX-License-Identifier: MIT
"""Where the vendored files of a repo are, and the state of each. Reads only, and needs no git: two hashes tell."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from ..catalog import ADAPTERS, Adapter
from ..errors import RefusalError
from ..render import rendered_parts
from ..render.header import Header, hash_of, looks_generated, split
from ..render.shim import shim_of
from ..repo.files import checked, read, with_lf
from ..repo.tree import Tree
from ..scan.survey import GATHER_WORD

# a file's state, and what that means; for the states newer and shim see `_judged`
MEANINGS = {
    "current": "as this release renders it",
    "stale": "not edited, but this release renders something else; `adapters update` brings it",
    "edited": "edited here; without the edits, as this release renders it",
    "both": "edited here, and this release renders something else; `adapters update` merges them",
    "conflict": "conflict markers of an update are left; resolve them",
    "original": "the project's own copy; `adapters vendor` replaces it",
}
GOOD = frozenset({"current", "shim"})  # nothing has to be done
_SPOILED = "its header was changed and cannot be read; restore it, or `adapters vendor NAME REPO --accept-edits`"


@dataclass(frozen=True)
class Vendored:
    """One file of a repo, as it is."""

    repo: Path
    path: str  # in the repo, with forward slashes
    state: str
    meaning: str  # of the state, for this file
    raw: bytes | None = None  # None: there is no such file
    header: Header | None = None  # None: no header of ours, or one that cannot be read
    body: bytes = b""  # what stands below the header, with LF, whatever the file has


def find(repo: Path, tree: Tree) -> list[Vendored]:
    """Every vendored file and shim of a repo; where there is none, the files that an adapter would replace."""
    ours = look_through(tree).ours or [path for adapter in ADAPTERS.values() for path in places(repo, adapter)]
    return [inspect(repo, path) for path in sorted(set(ours)) if os.path.lexists(repo / path)]


class Seen(NamedTuple):
    """What one look at every file of a tree found, among the project's own files."""

    ours: list[str]  # vendored files and shims
    gathering: list[str]  # files that may hold a copy


def look_through(tree: Tree, progress: Callable[[int, int], None] = lambda done, total: None) -> Seen:
    """Look at every file once. progress: told how many files are done, and how many there are."""
    seen = Seen([], [])
    for done, path in enumerate(tree.files):
        progress(done, len(tree.files))
        content = tree.content(path) or b""
        is_likely = b"@generated" in content or b"__all__" in content  # a closer look takes its time
        if is_likely and is_kept(path) and (looks_generated(content) or shim_of(content)):
            seen.ours.append(path)
        elif GATHER_WORD in content.lower():
            seen.gathering.append(path)
    return seen


def is_kept(path: str) -> bool:
    """Whether a file is the project's own: not a build's copy, nor in a hidden folder."""
    folders = path.split("/")[:-1]
    return folders[:1] not in (["build"], ["dist"]) and not any(folder.startswith(".") for folder in folders)


def inspect(repo: Path, path: str | Path) -> Vendored:
    """One file, judged by itself."""
    file = checked(repo, path)
    raw = read(file)
    header, body = split(with_lf(raw or b""))
    state, note = _judged(raw, header, body)
    return Vendored(repo, file.relative_to(repo).as_posix(), state, note or MEANINGS[state], raw, header, body)


def _judged(raw: bytes | None, header: Header | None, body: bytes) -> tuple[str, str]:
    """The state, and what to say of this file in place of the state's meaning."""
    if raw is None:
        return "original", "no file here"
    if header is None:
        adapter = shim_of(raw)
        if adapter is not None:
            return "shim", f"the code comes from {adapter.distribution}"
        return ("edited", _SPOILED) if looks_generated(raw) else ("original", "")
    if header.adapter not in ADAPTERS:
        return "newer", f"this release has no adapter {header.adapter}; upgrade the tools"
    ours = rendered_parts(header.adapter)[0]
    is_edited = hash_of(body) != header.body
    is_stale = header.body != ours.body  # by content: a version that renders the same is no reason to touch a file
    if is_edited and any(line.startswith((b"<<<<<<< ", b">>>>>>> ")) for line in body.split(b"\n")):
        return "conflict", ""
    if is_stale and _is_newer(header.version, ours.version):
        edited = "; it has edits too" if is_edited else ""
        return "newer", f"rendered by the later {header.version}; upgrade the tools{edited}"
    if is_edited:
        return ("both" if is_stale else "edited"), ""
    return ("stale" if is_stale else "current"), ""


def _is_newer(theirs: str, ours: str) -> bool:
    try:
        return Version(theirs) > Version(ours)
    except ValueError:  # not a version, or a number of thousands of digits
        return False


# ------------------------------------------------------------------ where the file of an adapter goes


def locate(repo: Path, adapter: Adapter, path: str | None) -> str:
    """The file that an adapter replaces: the one asked for, else where one of the known layouts has it."""
    if path is not None and not path.endswith(".py"):
        msg = f"{path} is not a Python module; give a path that ends in .py"
        raise RefusalError(msg)
    found = places(repo, adapter) if path is None else [path]
    if len(found) != 1:
        flat = f" or a distributed.py beside {adapter.flat_beside}" if adapter.flat_beside else ""
        where = " and ".join(found) or f"no package for {adapter.target}{flat}"
        msg = f"{repo} has {where}; say where the file goes with --path"
        raise RefusalError(msg)
    return found[0]


def places(repo: Path, adapter: Adapter) -> list[str]:
    """Where the layout of a repo would have an adapter's file."""
    package = repo / adapter.target.partition("/")[0]
    found = [adapter.target] if (package / "__init__.py").is_file() else []
    flat = Path(adapter.target).name
    if adapter.flat_beside and (repo / adapter.flat_beside).is_file() and os.path.lexists(repo / flat):
        found.append(flat)
    return found
