# SPDX-License-Identifier: MIT
"""Where projects stand: stage, state, edits, parity. Looks at the files, and not only at what was recorded."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..catalog import CORE_DISTRIBUTION, Adapter
from ..errors import ToolError
from ..files import read
from ..lock import LOCK_SUFFIX, is_lock
from ..paths import files_of
from ..shim import shim_of
from ..sources import core_version
from ..status import State, inspect
from . import metadata
from .fingerprints import Variant
from .journal import progress
from .origin import Requirement
from .record import Record, hash_or_none
from .sites import find_uses
from .standing import ORIGINAL, PACKAGE, STAGES, VENDORED, Standing, stand
from .tree import SourceTree

GOOD, LOOK, BAD = "good", "look", "bad"  # as it should be; worth a look; something is wrong
_WRONG = (State.TAMPERED, State.CONFLICT, State.MISSING)


@dataclass(frozen=True)
class Parity:
    """The latest parity result about a project's copy."""

    result: str
    when: str
    tone: str


@dataclass(frozen=True)
class Project:
    """One line of the overview."""

    name: str
    path: str
    stage: str  # "" where there is no copy, or where it cannot be told
    state: str
    tone: str
    note: str
    adapter: str = ""
    copy: str = ""
    edits: tuple[str, ...] = ()  # files of the last stage that were changed since
    parity: Parity | None = None

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        return asdict(self)


def look_at(repo: Path, known: Sequence[Variant] = ()) -> Project:
    """One project. What cannot be read is part of the answer."""
    try:
        tree = SourceTree(repo)
        standing = stand(repo, tree, known=known)
        state, tone, note = _state(standing, tree)
    except ToolError as error:
        return Project(repo.name, str(repo), "", "cannot be read", BAD, str(error))
    stage = standing.stage if standing.copy else ""
    adapter = standing.adapter.name if standing.adapter else ""
    edits, parity = _edits(repo, standing.record), _parity(repo, standing)
    if tone == GOOD and parity is not None and parity.tone != GOOD:
        tone, note = LOOK, f"parity: {parity.result}. {note}"
    return Project(repo.name, str(repo), stage, state, tone, note, adapter, standing.copy, edits, parity)


def _state(standing: Standing, tree: SourceTree) -> tuple[str, str, str]:
    """In a word, how that is, and what to do."""
    if standing.record.pending is not None:
        return "cut off", BAD, progress(standing.repo, standing.record.pending)
    if standing.problem and standing.stage != ORIGINAL:
        return "not as recorded", BAD, standing.problem
    if standing.stage == ORIGINAL or standing.adapter is None:
        return _own(standing)
    if standing.stage == VENDORED:
        seen = inspect(standing.repo, standing.repo / standing.copy)
        if seen.state is State.CURRENT:
            return seen.state.label, GOOD, _go_on(standing)
        return seen.state.label, BAD if seen.state in _WRONG else LOOK, seen.note or seen.state.meaning
    return _moved(standing, standing.adapter, tree)


def _own(standing: Standing) -> tuple[str, str, str]:
    """For a project that has its own copy still, or none."""
    finding = standing.finding
    if not standing.copy and "several" in standing.problem:
        return "several copies", LOOK, standing.problem
    if not standing.copy:
        deleted = next(_deleted(standing.repo), None)
        return _NONE if deleted is None else (State.MISSING.label, BAD, f"{deleted}: {State.MISSING.meaning}")
    if standing.problem:
        state = "a copy in a larger file" if finding and finding.kind == "inlined" else "its own way to gather"
        return state, LOOK, "`adapters plan` says what to do"
    like = f", {finding.similarity} % like {finding.variant}" if finding and finding.variant else ""
    state = "its own copy" if finding and finding.kind == "exact" else f"its own copy, edited{like}"
    return state, LOOK, _go_on(standing)


_NONE = ("no copy", GOOD, "nothing to move")


def _deleted(repo: Path) -> Iterator[str]:
    """Vendored files of which only the lock is left."""
    for lock in files_of(repo):
        file = lock.with_name(lock.name.removesuffix(LOCK_SUFFIX))
        if lock.name.endswith(".py" + LOCK_SUFFIX) and not os.path.lexists(file) and is_lock(lock):
            yield file.relative_to(repo).as_posix()


def _moved(standing: Standing, adapter: Adapter, tree: SourceTree) -> tuple[str, str, str]:
    """For a project whose code comes from a distribution."""
    repo, copy = standing.repo, standing.copy
    name = adapter.distribution if standing.stage == PACKAGE else CORE_DISTRIBUTION
    if metadata.change(repo, [Requirement(name, minimum=core_version())]) is not None:
        return "dependency missing", BAD, f"{name} is not among the dependencies any more"
    if standing.stage == PACKAGE:
        if shim_of(read(repo / copy) or b"") is None:
            return "locally edited", LOOK, f"{copy} is more than a shim"
        return "current", GOOD, _go_on(standing)
    left = find_uses(tree, copy, adapter.api)
    if left:
        where = f"{left[0].source.path}:{left[0].node.lineno}"
        return "uses left", BAD, f"{where} imports {copy}, which is gone"
    return "done", GOOD, "uses the core itself"


def _go_on(standing: Standing) -> str:
    after = STAGES[STAGES.index(standing.stage) + 1]
    return f"next: `adapters migrate REPO --to {after}`"


def _edits(repo: Path, record: Record) -> tuple[str, ...]:
    done = record.stages[-1].files if record.stages and record.pending is None else ()
    return tuple(trace.path for trace in done if hash_or_none(read(repo / trace.path)) != trace.after)


def _parity(repo: Path, standing: Standing) -> Parity | None:
    """The latest result about the copy: as it is now, or as it was before it was moved."""
    record = standing.record
    entries = [entry for entry in record.parity if entry.get("file") == standing.copy]
    if not entries:
        return None
    entry = max(entries, key=lambda one: str(one.get("when", "")))
    contents = {trace.before for done in record.stages for trace in done.files if trace.path == standing.copy}
    result = str(entry.get("result", "?"))
    if entry.get("sha256") not in {*contents, hash_or_none(read(repo / standing.copy))}:
        return Parity(f"{result}, of another version", str(entry.get("when", "")), LOOK)
    return Parity(result, str(entry.get("when", "")), BAD if result == "different" else GOOD)
