# SPDX-License-Identifier: MIT
"""The stages, and the change that each one makes. Nothing is written here: everything is looked at first.

original  the project's own file
vendored  the same file, self-contained, from this release
package   a shim in its place, and the adapter among the project's dependencies
core      call sites that use the core itself; the file is gone
"""

import re
from dataclasses import dataclass
from pathlib import Path

from .. import floor, vendoring
from ..catalog import CORE, CORE_DISTRIBUTION, Adapter
from ..errors import RefusalError
from ..files import read, with_newlines
from ..git import is_committed, is_under_git
from ..paths import lock_path
from ..shim import shim, shim_of
from ..sources import core_version
from ..status import State, inspect
from . import metadata, origin
from .hidden import Remark
from .judge import judge
from .origin import Requirement
from .record import FileChange
from .rewrite import rewrite
from .sites import find_uses
from .standing import CORE_STAGE, PACKAGE, STAGES, VENDORED, Standing
from .syntax import module_path
from .tree import SourceTree


@dataclass(frozen=True)
class Step:
    """What the next stage changes, and what a person should know about it."""

    stage: str
    changes: tuple[FileChange, ...]
    notes: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """All changes, as one unified diff."""
        return diff_of(self.changes)


def diff_of(changes: tuple[FileChange, ...]) -> str:
    """Changes as a unified diff; locks are compressed data and only named."""
    parts = []
    for one in changes:
        old, new = (one.path if side is not None else "(no file)" for side in (one.old, one.new))
        if one.path.endswith(".lock"):
            parts.append(f"--- {old}\n+++ {new}\n(a lock: data)")
        else:
            parts.append(vendoring.unified(one.old or b"", one.new or b"", old, new))
    return "\n".join(parts)


def next_step(standing: Standing, tree: SourceTree, stage: str, source: str | None) -> Step:
    """The change to the next stage. RefusalError with what to do where it cannot be made."""
    adapter = standing.ready()
    _refuse_leaps(standing, stage)
    if source is not None and stage != PACKAGE:
        raise RefusalError("--from says where the adapter comes from: it belongs to --to package")
    if stage == CORE_STAGE:
        step = _to_core(standing, adapter, tree)
    else:
        _refuse_unknown_names(standing, adapter, tree)
        step = _to_vendored(standing, adapter) if stage == VENDORED else _to_package(standing, adapter, source)
    _refuse_uncommitted(standing.repo, step)
    return step


def _refuse_leaps(standing: Standing, stage: str) -> None:
    here, there = STAGES.index(standing.stage), STAGES.index(stage)
    if there == here:
        msg = f"{standing.repo} is at {stage} already"
    elif there < here:
        msg = f"{standing.repo} is at {standing.stage}, beyond {stage}; `adapters rollback {standing.repo}` goes back"
    elif there > here + 1:
        after = STAGES[here + 1]
        msg = f"{standing.repo} is at {standing.stage}; the next stage is {after}: migrate --to {after} first"
    else:
        return
    raise RefusalError(msg)


def _refuse_unknown_names(standing: Standing, adapter: Adapter, tree: SourceTree) -> None:
    """What the tree takes from its copy has to be among what the adapter keeps."""
    own = standing.finding.names if standing.finding else []
    uses = find_uses(tree, standing.copy, [*adapter.api, *own])
    unknown = [use.site for use in uses if use.name not in (*adapter.api, "", "*") and use.source.path != standing.copy]
    if unknown:
        lines = "\n".join(f"  {site.path}:{site.line}: {site.name}: {site.text}" for site in unknown)
        msg = (
            f"{adapter.distribution} has no such name; move it to a file of your own, commit, run this again:\n{lines}"
        )
        raise RefusalError(msg)


def _to_vendored(standing: Standing, adapter: Adapter) -> Step:
    repo, finding = standing.repo, standing.finding
    change = vendoring.vendor(repo, adapter, standing.copy, force=True)
    new = with_newlines(change.content, crlf=change.seen.crlf)
    changes = (_change(repo, standing.copy, new), _change(repo, _lock_of(repo, standing.copy), change.lock.encode()))
    too_old = tuple(filter(None, [floor.note(repo, standing.copy)]))
    if finding is not None and finding.similarity == 100:
        return Step(VENDORED, changes, too_old)
    differing = ", ".join(one.name for one in finding.differences) if finding else ""
    note = (
        f"{standing.copy} is not as any known copy{f': {differing}' if differing else ''}. The new file has none of "
        f"that; `adapters parity {repo / standing.copy} --adapter {adapter.name}` shows what differs"
    )
    return Step(VENDORED, changes, (note, *too_old))


def _to_package(standing: Standing, adapter: Adapter, source: str | None) -> Step:
    repo = standing.repo
    seen = inspect(repo, repo / standing.copy)
    if seen.state not in (State.CURRENT, State.STALE):
        msg = f"{standing.copy}: {seen.state.label}. The package has none of that: see `adapters diff {repo}`"
        raise RefusalError(msg)
    _refuse_shadow(repo, adapter.module)
    requirements = origin.find(adapter, source)
    added = metadata.change(repo, requirements)
    new = with_newlines(shim(adapter).encode(), crlf=seen.crlf)
    changes = [_change(repo, standing.copy, new), _change(repo, _lock_of(repo, standing.copy), None)]
    made = tuple(one for one in [*changes, added] if one is not None and one.old != one.new)
    here_only = any(requirement.url.startswith("file:") for requirement in requirements)
    note = f"{source} is a path on this machine: nobody else can install that requirement. --from git+URL serves all"
    return Step(PACKAGE, made, (note,) if here_only else ())


def _to_core(standing: Standing, adapter: Adapter, tree: SourceTree) -> Step:
    repo, copy = standing.repo, standing.copy
    content = read(repo / copy) or b""
    if shim_of(content) is not adapter:
        msg = f"{copy} is not the shim any more: what was written into it would be lost. Move it to another file first"
        raise RefusalError(msg)
    _refuse_shadow(repo, CORE)
    verdict = judge(tree, copy, adapter)
    by_hand = [*verdict.by_hand, *_listed_modules(repo, copy)]
    if by_hand:
        lines = "\n".join(f"  {remark}" for remark in by_hand)
        msg = f"nothing was changed: {len(by_hand)} place(s) need a person first\n{lines}"
        raise RefusalError(msg)
    changes = [
        _change(repo, path, rewrite(path, tree.contents[path], edits)) for path, edits in sorted(verdict.edits.items())
    ]
    left = find_uses(tree.changed({one.path: one.new for one in changes}), copy, adapter.api)
    if left:
        msg = f"{left[0].source.path}:{left[0].node.lineno} would still use {copy}; change it by hand"
        raise RefusalError(msg)
    requirement = Requirement(CORE_DISTRIBUTION, minimum=core_version())
    changed = metadata.change(repo, [requirement], remove=adapter.distribution)
    notes = tuple(f"{remark}" for remark in verdict.notes)
    return Step(CORE_STAGE, (*changes, *([changed] if changed else []), _change(repo, copy, None)), notes)


def _change(repo: Path, path: str, new: bytes | None) -> FileChange:
    file = repo / path
    mode = file.stat().st_mode & 0o777 if file.exists() else None
    return FileChange(path, read(file), new, mode)


def _lock_of(repo: Path, copy: str) -> str:
    return lock_path(repo / copy).relative_to(repo).as_posix()


def _refuse_shadow(repo: Path, module: str) -> None:
    """A file or folder of that name would be imported in place of what is installed."""
    for place in (repo / module, repo / f"{module}.py", repo / "src" / module, repo / "src" / f"{module}.py"):
        if place.exists():
            msg = f"{place} would be imported in place of the installed {module}; rename it"
            raise RefusalError(msg)


def _listed_modules(repo: Path, copy: str) -> list[Remark]:
    """Metadata that packs a flat copy by name: a build would miss the file."""
    word = module_path(copy).rpartition("/")[2]
    found = []
    for name in ("setup.py", "setup.cfg", "pyproject.toml"):
        lines = (read(repo / name) or b"").decode(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if re.search(r"py[-_]modules", line) and re.search(rf"\b{re.escape(word)}\b", line):
                found.append(Remark(name, number, f"packs the module {word}, which goes away; take it out"))
    return found


def _refuse_uncommitted(repo: Path, step: Step) -> None:
    """A stage is a commit of its own, on top of what is committed."""
    for change in step.changes:
        path = repo / change.path
        if change.old is not None and is_under_git(path.parent) and not is_committed(path, change.old):
            msg = f"{change.path} has changes that are not committed; commit, stash or restore it first"
            raise RefusalError(msg)
