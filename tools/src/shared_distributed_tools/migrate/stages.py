# SPDX-License-Identifier: MIT
"""At which stage a project is, read off its files, and the change that leads to another one.

original  the project's own copy
vendored  the same file, self-contained, from this release
package   a shim in its place, and the adapter among the project's dependencies
core      call sites that use the core itself; the shim stays for others, unless it is removed
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from ..catalog import ADAPTERS, CORE, CORE_DISTRIBUTION, Adapter, adapter_named
from ..errors import RefusalError
from ..render.released import is_released
from ..render.shim import shim, shim_of
from ..render.sources import version
from ..repo.changes import Change
from ..repo.dependencies import added, is_listed, name_in
from ..repo.files import checked, like
from ..repo.git import Checkout
from ..repo.tree import Tree
from ..repo.uses import find_uses
from ..scan.survey import Finding, find_copy
from ..vendor.content import afresh, refuse_edits, refuse_missing_names
from ..vendor.state import State, Vendored, find, inspect, is_kept, places
from .proof import BY_HAND
from .to_core import look_at_files, mentions, moved, texts_of

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
        at_package = replace(project, stage=PACKAGE, copy=seen.path, adapter=shim_of(seen.raw or b""))
        on_core, left = files_on_core(at_package)
        return replace(at_package, stage=CORE_STAGE) if on_core and not left else at_package
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
        advice = (
            f"{one.path} gathers in a way of its own ({lines}), which no adapter covers. Use `all_gather` of "
            f"{CORE_DISTRIBUTION} in its place; or, in a checkout of this project, `adapters new NAME --like ADAPTER "
            f"--replaces {one.path} --original {one.path}` begins an adapter for it"
        )
        return replace(here, obstacle=Obstacle.UNKNOWN, advice=advice)
    if importing_core(project.tree) and path is None:
        return replace(project, stage=CORE_STAGE)
    where = f"{path} in {project.repo}" if path else str(project.repo)
    return replace(project, obstacle=Obstacle.NONE, advice=f"no copy found: {where}; `adapters scan` looks anywhere")


def importing_core(tree: Tree) -> set[str]:
    """The project's own files that import the core."""
    return {file for file in tree.files if is_kept(file) and _IMPORTS_CORE.search(tree.content(file) or b"")}


def files_on_core(project: Project) -> tuple[int, int]:
    """How many files import the core, and how many the copy."""
    adapter = project.ready()
    uses = find_uses(project.tree, project.copy, [*adapter.api]) if project.copy else []
    left = {use.source.path for use in uses if use.source.path != project.copy and is_kept(use.source.path)}
    return len(importing_core(project.tree) - left), len(left)


# ------------------------------------------------------------------ the change to a stage


@dataclass(frozen=True)
class Step:
    """What a stage changes, and what is left to a person."""

    changes: list[Change]
    message: str  # for the commit
    by_hand: list[str] = field(default_factory=list)  # requirements
    left: list[str] = field(default_factory=list)  # places that stay, and what to write there
    warning: str = ""


def step_to(
    project: Project, stage: str, requirements: Sequence[str], *, accept_edits: bool, remove_module: bool = False
) -> Step:
    """The change to a later stage. RefusalError with what to do where it cannot be made."""
    here, there = STAGES.index(project.stage or ORIGINAL), STAGES.index(stage)
    if project.stage and there <= here and not (remove_module and project.copy):
        beyond = "" if there == here else f", beyond {stage}; `git revert` of the commit that moved it goes back"
        msg = f"{project.repo} is at {project.stage} already{beyond}"
        raise RefusalError(msg)
    adapter = project.ready()
    if requirements and stage == VENDORED:
        raise RefusalError("--requirement says where packages come from: it belongs to --to package and --to core")
    if remove_module and stage != CORE_STAGE:
        raise RefusalError("--remove-module belongs to --to core")
    seen = project.inspected()
    refuse_missing_names(project.tree, seen.path, adapter)
    if stage == VENDORED:
        return Step([afresh(seen, adapter, accept_edits=accept_edits)], f"{seen.path} vendored from shared-distributed")
    refuse_edits(seen, adapter, accept_edits=accept_edits)
    if stage == PACKAGE and adapter.distribution not in map(name_in, requirements or [adapter.distribution]):
        msg = f"none of the requirements is about {adapter.distribution}, which {seen.path} would import"
        raise RefusalError(msg)
    step = _to_core(project, seen, adapter, remove_module) if stage == CORE_STAGE else Step([], "")
    if not remove_module and seen.state is not State.SHIM:
        step.changes.insert(0, Change(seen.path, seen.raw, like(shim(adapter).encode(), seen.raw)))
    needed = [] if remove_module else [adapter.distribution]
    needed += [CORE_DISTRIBUTION] if stage == CORE_STAGE else []
    _require(project.repo, step, needed, requirements)
    unsaid = [] if is_released() else [name for name in needed if name not in map(name_in, requirements)]
    message = step.message or f"{seen.path} replaced by {adapter.distribution}"
    return replace(step, message=message, warning="\n".join(_ON_NO_INDEX.format(name) for name in unsaid))


def _require(repo: Path, step: Step, needed: Sequence[str], requirements: Sequence[str]) -> None:
    """List what a step needs among the dependencies, or leave that to a person."""
    for distribution in needed:
        _refuse_shadow(repo, distribution.replace("-", "_"))
    given = {name_in(one): one for one in requirements}
    every = {name: f"{name}>={version()}" for name in needed} | given
    wanted = [one for name, one in every.items() if not is_listed(repo, name)]
    change = added(repo, wanted) if wanted else None
    if change is not None:
        step.changes.append(change)
    elif wanted:
        step.by_hand.extend(wanted)
    if any("@" in one for one in wanted):
        step.left.append("PyPI refuses a package whose dependencies have a direct reference (`NAME @ URL`)")


def _to_core(project: Project, seen: Vendored, adapter: Adapter, remove_module: bool) -> Step:
    """Every file that is proven, and what is left to a person."""
    tree = project.tree
    uses = [use for use in find_uses(tree, seen.path, [*adapter.api]) if use.source.path != seen.path]
    absent = [path for path in tree.absent if remove_module or path in {use.source.path for use in uses}]
    if absent:
        names = ", ".join(absent[:5])
        msg = f"a sparse checkout leaves out {names}; `git sparse-checkout disable` brings back what has to be seen"
        raise RefusalError(msg)
    tracked = {path for path, _ in texts_of(tree, (".py", ".pyw"))}
    files = [file for file in look_at_files(tree, uses, adapter) if file.source.path in tracked]
    proven = [file for file in files if file.is_proven]
    changes = [Change(file.source.path, tree.content(file.source.path), moved(tree, file)) for file in proven]
    left = [f"{file.source.path} stays: {file.stays}" for file in files if file.stays]
    left += [
        f"{site.path}:{site.line}: {site.text}\n    {core.removeprefix(BY_HAND)}"
        for file in files
        for site, core in file.rows
        if core.startswith(BY_HAND)
    ]
    if not changes and not remove_module:
        msg = "\n  ".join(
            ["no file can move as it is. Change these places by hand, commit, and run this again:", *left]
        )
        raise RefusalError(msg)
    if remove_module:
        new = {one.path: one.new.decode(errors="replace") for one in changes}
        found = mentions(((path, new.get(path, text)) for path, text in texts_of(tree)), seen.path)
        kept = [*left, *(f"{one.path}:{one.line}: {one.text}" for one in found if one.is_python)]
        if kept:
            msg = "\n  ".join([f"{seen.path} stays, because something refers to it:", *kept])
            raise RefusalError(msg)
        left += [f"{one.path}:{one.line} mentions it: {one.text}" for one in found]
        changes.append(Change(seen.path, seen.raw, b"", is_removed=True))
    return Step(changes, f"{len(proven)} of {len(files)} files moved to {CORE}", left=left)


def _refuse_shadow(repo: Path, module: str) -> None:
    """A file or folder of that name would be imported in place of what is installed."""
    for place in (repo / module, repo / f"{module}.py", repo / "src" / module, repo / "src" / f"{module}.py"):
        if place.exists():
            msg = f"{place} would be imported in place of the installed {module}; rename it"
            raise RefusalError(msg)


def missing_dependency(project: Project) -> str:
    """The distribution that a project at package or core uses and does not list; empty if there is none."""
    if project.stage not in (PACKAGE, CORE_STAGE):
        return ""
    needed = [project.adapter.distribution] if project.adapter else []
    needed += [CORE_DISTRIBUTION] if importing_core(project.tree) else []
    return next((name for name in needed if not is_listed(project.repo, name)), "")
