# SPDX-License-Identifier: MIT
"""At which stage a project is, read off its files, and the change that leads to another one.

original  the project's own copy
vendored  the same file, self-contained, from this release
package   a shim in its place, and the adapter among the project's dependencies
core      call sites that use the core itself; no copy is left
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from ..catalog import ADAPTERS, CORE_DISTRIBUTION, Adapter, adapter_named
from ..errors import RefusalError
from ..render.released import is_released
from ..render.shim import shim, shim_of
from ..render.sources import version
from ..repo.changes import Change
from ..repo.dependencies import added, is_listed, name_in
from ..repo.files import checked, like
from ..repo.git import Checkout
from ..repo.tree import Tree
from ..scan.survey import Finding, find_copy
from ..vendor.content import afresh, refuse_edits, refuse_missing_names
from ..vendor.state import State, Vendored, find, inspect, is_kept, places

ORIGINAL, VENDORED, PACKAGE, CORE_STAGE = "original", "vendored", "package", "core"
STAGES = (ORIGINAL, VENDORED, PACKAGE, CORE_STAGE)
_ON_NO_INDEX = (
    "{0} is on no package index yet, and whoever registers that name decides what is installed; say where it is "
    "really: --requirement '{0} @ git+https://HOST/OWNER/REPO.git@REVISION#subdirectory=…'"
)
_IMPORTS_CORE = re.compile(rb"^\s*(?:from|import)\s+shared_distributed\b", re.MULTILINE)


class Obstacle(Enum):
    """Why a project cannot be moved on as it is."""

    NONE = "no copy"
    SEVERAL = "several copies"
    INLINED = "a copy in a larger file"
    UNKNOWN = "its own way to gather"


@dataclass(frozen=True)
class Project:
    """One repo."""

    repo: Path
    tree: Tree
    stage: str = ""  # "" where it cannot be told
    copy: str = ""  # the file that the migration is about, with forward slashes
    adapter: Adapter | None = None
    finding: Finding | None = None  # what a scan says of the copy, while it is the project's own
    obstacle: Obstacle | None = None
    advice: str = ""  # what to do about the obstacle

    def ready(self) -> Adapter:
        """The adapter. RefusalError where the project cannot be moved on."""
        if self.obstacle is not None or self.adapter is None:
            raise RefusalError(self.advice)
        return self.adapter

    def inspected(self) -> Vendored:
        """The copy's file as it is."""
        return inspect(self.repo, self.repo / self.copy)


def look_at(repo: Path, path: str | None = None) -> Project:
    """Read a project's stage off its files. Reads only. path: the copy, where there are several."""
    path = None if path is None else checked(repo, path).relative_to(repo).as_posix()
    tree = Tree(repo, Checkout.around(repo))
    project = Project(repo, tree)
    ours = [_ours(project, seen) for seen in find(repo, tree) if seen.state is not State.ORIGINAL]
    found = [one for one in ours if path in (None, one.copy)]
    paths = [path] if path else [file for file in tree.files if is_kept(file)]
    looked = [] if found else [find_copy(tree, one) for one in paths if one in tree.files]
    findings = [one for one in looked if one is not None and one.kind != "vendored"]
    found = found or [
        replace(project, stage=ORIGINAL, copy=one.path, adapter=adapter_named(one.adapter), finding=one)
        for one in findings
        if one.adapter and one.kind in ("exact", "edited")
    ]
    found = found or [one for one in _at_their_places(project, findings) if path in (None, one.copy)]
    if len(found) > 1:
        names = ", ".join(sorted(one.copy for one in found))
        return replace(project, obstacle=Obstacle.SEVERAL, advice=f"several copies: {names}; say which with --path")
    return found[0] if found else _without_a_copy(project, findings, path)


def _ours(project: Project, seen: Vendored) -> Project:
    if seen.state is State.SHIM:
        return replace(project, stage=PACKAGE, copy=seen.path, adapter=shim_of(seen.raw or b""))
    adapter = ADAPTERS.get(seen.header.adapter) if seen.header else None
    moved = replace(project, stage=VENDORED, copy=seen.path, adapter=adapter)
    return moved if adapter else replace(moved, obstacle=Obstacle.UNKNOWN, advice=f"{seen.path}: {seen.meaning}")


def _at_their_places(project: Project, findings: Sequence[Finding]) -> list[Project]:
    """Files where an adapter's project keeps its copy, and that define what a copy defines, however they do it."""
    known = {one.path: one for one in findings}
    return [
        replace(project, stage=ORIGINAL, copy=path, adapter=adapter, finding=known.get(path))
        for adapter in ADAPTERS.values()
        for path in places(project.repo, adapter)
        if path in project.tree.files and b"AllGather" in (project.tree.content(path) or b"")
    ]


def _without_a_copy(project: Project, findings: Sequence[Finding], path: str | None) -> Project:
    for one in findings:
        lines = ", ".join(f"{part.name} (lines {part.line} to {part.end})" for part in one.definitions)
        here = replace(project, stage=ORIGINAL, copy=one.path, finding=one)
        if one.kind == "inlined" and one.adapter:
            advice = (
                f"{one.path} holds a copy inside a larger file: {lines}. Move these definitions into a file of "
                "their own, say distributed.py beside it, import them from there, commit, and run this again"
            )
            return replace(here, adapter=adapter_named(one.adapter), obstacle=Obstacle.INLINED, advice=advice)
        advice = f"{one.path} gathers in a way of its own ({lines}), which no adapter covers; see `adapters scan`"
        return replace(here, obstacle=Obstacle.UNKNOWN, advice=advice)
    tree = project.tree
    on_core = any(_IMPORTS_CORE.search(tree.content(file) or b"") for file in tree.files if is_kept(file))
    if on_core and path is None:
        return replace(project, stage=CORE_STAGE)
    where = f"{path} in {project.repo}" if path else str(project.repo)
    return replace(project, obstacle=Obstacle.NONE, advice=f"no copy found: {where}; `adapters scan` looks anywhere")


# ------------------------------------------------------------------ the change to a stage


@dataclass(frozen=True)
class Step:
    """What a stage changes, and what is left to a person."""

    changes: list[Change]
    message: str  # for the commit
    by_hand: list[str] = field(default_factory=list)
    warning: str = ""


def step_to(project: Project, stage: str, requirements: Sequence[str], *, accept_edits: bool) -> Step:
    """The change to a later stage. RefusalError with what to do where it cannot be made."""
    here, there = STAGES.index(project.stage or ORIGINAL), STAGES.index(stage)
    if project.stage and there <= here:
        beyond = "" if there == here else f", beyond {stage}; `git revert` of the commit that moved it goes back"
        msg = f"{project.repo} is at {project.stage} already{beyond}"
        raise RefusalError(msg)
    adapter = project.ready()
    if requirements and stage != PACKAGE:
        raise RefusalError("--requirement says where the adapter comes from: it belongs to --to package")
    if stage == CORE_STAGE:
        msg = (
            f"moving call sites to the core is done by hand for now. `adapters plan {project.repo}` lists each of them "
            "and what it becomes"
        )
        raise RefusalError(msg)
    seen = project.inspected()
    refuse_missing_names(project.tree, seen.path, adapter)
    if stage == VENDORED:
        return Step([afresh(seen, adapter, accept_edits=accept_edits)], f"{seen.path} vendored from shared-distributed")
    refuse_edits(seen, adapter, accept_edits=accept_edits)
    step = _to_package(project, seen, adapter, requirements or [f"{adapter.distribution}>={version()}"])
    return step if requirements or is_released() else replace(step, warning=_ON_NO_INDEX.format(adapter.distribution))


def _to_package(project: Project, seen: Vendored, adapter: Adapter, requirements: Sequence[str]) -> Step:
    repo = project.repo
    _refuse_shadow(repo, adapter.module)
    change_to_shim = Change(seen.path, seen.raw, like(shim(adapter).encode(), seen.raw))
    step = Step([change_to_shim], f"{seen.path} replaced by {adapter.distribution}")
    if adapter.distribution not in map(name_in, requirements):
        msg = f"none of the requirements is about {adapter.distribution}, which {seen.path} would import"
        raise RefusalError(msg)
    wanted = [one for one in requirements if not is_listed(repo, name_in(one))]
    change = added(repo, wanted) if wanted else None
    if change is not None:
        step.changes.append(change)
    elif wanted:
        step.by_hand.extend(wanted)
    return step


def _refuse_shadow(repo: Path, module: str) -> None:
    """A file or folder of that name would be imported in place of what is installed."""
    for place in (repo / module, repo / f"{module}.py", repo / "src" / module, repo / "src" / f"{module}.py"):
        if place.exists():
            msg = f"{place} would be imported in place of the installed {module}; rename it"
            raise RefusalError(msg)


def missing_dependency(project: Project) -> str:
    """The distribution that a project at package or core uses and does not list; empty if there is none."""
    needed = {PACKAGE: project.adapter.distribution if project.adapter else "", CORE_STAGE: CORE_DISTRIBUTION}
    name = needed.get(project.stage, "")
    return name if name and not is_listed(project.repo, name) else ""
