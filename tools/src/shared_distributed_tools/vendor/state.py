# SPDX-License-Identifier: MIT
"""Where the vendored files of a repo are, and the state of each. Reads only, and needs no git: two hashes tell."""

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from packaging.version import Version

from ..catalog import ADAPTERS, Adapter
from ..errors import RefusalError
from ..render import rendered_parts
from ..render.header import Header, hash_of, looks_generated, split
from ..render.shim import shim_of
from ..repo.files import checked, read, with_lf
from ..repo.tree import Tree


class State(Enum):
    """The state of a file, and what it means."""

    CURRENT = "current", "as this release renders it"
    STALE = "stale", "not edited, but this release renders something else; `adapters update` brings it"
    EDITED = "edited", "edited here; without the edits, as this release renders it"
    BOTH = "both", "edited here, and this release renders something else; `adapters update` merges them"
    CONFLICT = "conflict", "conflict markers of an update are left; resolve them"
    NEWER = "newer", "rendered by a later release than this one, and left as it is; upgrade the tools"
    SHIM = "shim", "the code comes from the installed adapter"
    ORIGINAL = "original", "the project's own copy; `adapters vendor` replaces it"

    def __init__(self, label: str, meaning: str) -> None:
        self.label = label
        self.meaning = meaning

    @property
    def is_good(self) -> bool:
        """Whether nothing has to be done."""
        return self in (State.CURRENT, State.SHIM)

    @property
    def has_edits(self) -> bool:
        """Whether replacing the file would drop what somebody wrote into it."""
        return self in (State.EDITED, State.BOTH, State.CONFLICT)


_SPOILED = "its header was changed and cannot be read; restore it, or `adapters vendor NAME REPO --accept-edits`"


@dataclass(frozen=True)
class Vendored:
    """One file of a repo, as it is."""

    repo: Path
    path: str  # in the repo, with forward slashes
    state: State
    note: str = ""
    raw: bytes | None = None  # None: there is no such file
    header: Header | None = None  # None: no header of ours, or one that cannot be read

    @property
    def adapter(self) -> Adapter | None:
        """Whose file or shim it is, as far as this release knows."""
        return ADAPTERS.get(self.header.adapter) if self.header else shim_of(self.raw or b"")

    @property
    def body(self) -> bytes:
        """What stands below the header, with LF, whatever the file has."""
        return split(with_lf(self.raw or b""))[1]

    @property
    def meaning(self) -> str:
        """What the state means for this file."""
        return self.note or self.state.meaning


def find(repo: Path, tree: Tree) -> list[Vendored]:
    """Every vendored file and shim of a repo; where there is none, the files that an adapter would replace."""
    ours = [path for path in tree.files if is_kept(path) and _is_ours(tree.content(path) or b"")]
    if not ours:
        ours = [path for adapter in ADAPTERS.values() for path in places(repo, adapter)]
    return [inspect(repo, repo / path) for path in sorted(set(ours)) if os.path.lexists(repo / path)]


def _is_ours(content: bytes) -> bool:
    return looks_generated(content) or shim_of(content) is not None


def is_kept(path: str) -> bool:
    """Whether a file is the project's own: not a build's copy, nor in a hidden folder."""
    folders = path.split("/")[:-1]
    return folders[:1] not in (["build"], ["dist"]) and not any(folder.startswith(".") for folder in folders)


def inspect(repo: Path, file: Path) -> Vendored:
    """One file, judged by itself."""
    file = checked(repo, file)
    raw = read(file)
    header, body = split(with_lf(raw or b""))
    return Vendored(repo, file.relative_to(repo).as_posix(), *_judged(raw, header, body), raw, header)


def _judged(raw: bytes | None, header: Header | None, body: bytes) -> tuple[State, str]:
    """The state, and what there is to say beyond it."""
    if raw is None:
        return State.ORIGINAL, "no file here"
    if header is None:
        adapter = shim_of(raw)
        if adapter is not None:
            return State.SHIM, f"the code comes from {adapter.distribution}"
        return (State.EDITED, _SPOILED) if looks_generated(raw) else (State.ORIGINAL, "")
    if header.adapter not in ADAPTERS:
        return State.NEWER, f"this release has no adapter {header.adapter}; upgrade the tools"
    ours = rendered_parts(header.adapter)[0]
    is_edited = hash_of(body) != header.body
    is_stale = header.body != ours.body  # by content: a version that renders the same is no reason to touch a file
    if is_edited and any(line.startswith((b"<<<<<<< ", b">>>>>>> ")) for line in body.split(b"\n")):
        return State.CONFLICT, ""
    if is_stale and _is_newer(header.version, ours.version):
        edited = "; it has edits too" if is_edited else ""
        return State.NEWER, f"rendered by the later {header.version}; upgrade the tools{edited}"
    if is_edited:
        return (State.BOTH if is_stale else State.EDITED), ""
    return (State.STALE if is_stale else State.CURRENT), ""


def _is_newer(theirs: str, ours: str) -> bool:
    try:
        return Version(theirs) > Version(ours)
    except ValueError:  # not a version, or a number of thousands of digits
        return False


# ------------------------------------------------------------------ where the file of an adapter goes


def locate(repo: Path, adapter: Adapter, path: str | None) -> Path:
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
    return checked(repo, found[0])


def places(repo: Path, adapter: Adapter) -> list[str]:
    """Where the layout of a repo would have an adapter's file."""
    package = repo / adapter.target.partition("/")[0]
    found = [adapter.target] if (package / "__init__.py").is_file() else []
    flat = Path(adapter.target).name
    if adapter.flat_beside and (repo / adapter.flat_beside).is_file() and os.path.lexists(repo / flat):
        found.append(flat)
    return found
