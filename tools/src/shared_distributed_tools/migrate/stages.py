# SPDX-License-Identifier: MIT
"""At which stage a project is, read off its files, and the change that leads to another one.

original  the project's own copy
vendored  the same file, self-contained, from this release
package   a shim in its place, and the adapter among the project's dependencies
core      call sites that use the core itself; the shim stays for others, unless it is removed
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ..catalog import ADAPTERS, CORE, CORE_DISTRIBUTION, Adapter
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
from ..vendor.content import afresh, refuse_losses
from ..vendor.state import Vendored, find, inspect, is_kept, places
from .proof import BY_HAND
from .to_core import look_at_files

ORIGINAL, VENDORED, PACKAGE, CORE_STAGE = "original", "vendored", "package", "core"
STAGES = (ORIGINAL, VENDORED, PACKAGE, CORE_STAGE)
NO_COPY = "no copy"
_ON_NO_INDEX = (
    "{0} is on no package index yet, and whoever registers that name decides what is installed; say where it is "
    "really: --requirement '{0} @ git+https://HOST/OWNER/REPO.git@REVISION#subdirectory=…'"
)
_IMPORTS_CORE = re.compile(rb"^\s*(?:from|import)\s+shared_distributed\b", re.MULTILINE)


class NotMovableError(RefusalError):
    """A project that cannot be moved on: its state in a few words, and the message says what to do."""

    def __init__(self, state: str, advice: str, stage: str = "", adapter: str = "") -> None:
        super().__init__(advice)
        self.state, self.stage, self.adapter = state, stage, adapter


@dataclass(frozen=True)
class Project:
    """One repo that can be moved on, or is on the core."""

    repo: Path
    tree: Tree
    stage: str
    copy: str = ""  # the file that the migration is about, with forward slashes; on the core there may be none
    adapter: Adapter | None = None  # None where the header of a vendored file cannot be read, or there is no copy
    finding: Finding | None = None  # what a scan says of the copy, while it is the project's own

    def ready(self) -> Adapter:
        """The adapter. RefusalError where it is not known."""
        if self.adapter is None:
            msg = f"{self.copy}: {self.inspected().meaning}"
            raise RefusalError(msg)
        return self.adapter

    def inspected(self) -> Vendored:
        """The copy's file as it is."""
        return inspect(self.repo, self.copy)


def look_at(repo: Path, path: str | None = None) -> Project:
    """Read a project's stage off its files. Reads only. path: the copy, where there are several."""
    path = None if path is None else checked(repo, path).relative_to(repo).as_posix()
    tree = Tree(repo, Checkout.around(repo))
    ours = {seen.path: seen for seen in find(repo, tree) if seen.state != "original" and path in (None, seen.path)}
    if ours:
        seen = ours[_only(ours)]
        adapter = ADAPTERS.get(seen.header.adapter) if seen.header else shim_of(seen.raw or b"")
        project = Project(repo, tree, PACKAGE if seen.state == "shim" else VENDORED, seen.path, adapter)
        on_core, left = files_on_core(project)
        return replace(project, stage=CORE_STAGE) if on_core and not left else project
    files = [file for file in tree.files if (is_kept(file) if path is None else file == path)]
    findings = {one.path: one for one in (find_copy(tree, file) for file in files) if one and one.kind != "vendored"}
    copies = {one.path: one.adapter for one in findings.values() if one.adapter and one.kind in ("exact", "edited")}
    copies = copies or {  # where an adapter's project keeps it, however it is written
        place: adapter.name
        for adapter in ADAPTERS.values()
        for place in places(repo, adapter)
        if place in files and b"AllGather" in (tree.content(place) or b"")
    }
    if copies:
        copy = _only(copies)
        return Project(repo, tree, ORIGINAL, copy, ADAPTERS[copies[copy]], findings.get(copy))
    if not findings and path is None and importing_core(tree):
        return Project(repo, tree, CORE_STAGE)
    raise _without_a_copy(list(findings.values()), f"{path} in {repo}" if path else str(repo))


def _only(found: Collection[str]) -> str:
    if len(found) > 1:
        raise NotMovableError("several copies", f"several copies: {', '.join(sorted(found))}; say which with --path")
    return next(iter(found))


def _without_a_copy(findings: list[Finding], where: str) -> NotMovableError:
    if not findings:
        return NotMovableError(NO_COPY, f"no copy found: {where}; `adapters scan` looks anywhere")
    one = findings[0]
    lines = ", ".join(f"{part.name} (lines {part.line} to {part.end})" for part in one.definitions)
    if one.adapter:
        advice = (
            f"{one.path} holds a copy inside a larger file: {lines}. Move these definitions into a file of "
            "their own, say distributed.py beside it, import them from there, commit, and run this again"
        )
        return NotMovableError("a copy in a larger file", advice, ORIGINAL, one.adapter)
    advice = (
        f"{one.path} gathers in a way of its own ({lines}), which no adapter covers. Use `all_gather` of "
        f"{CORE_DISTRIBUTION} in its place; or, in a checkout of this project, `adapters new NAME --like ADAPTER "
        f"--replaces {one.path} --original {one.path}` begins an adapter for it"
    )
    return NotMovableError("its own way to gather", advice, ORIGINAL)


def importing_core(tree: Tree) -> set[str]:
    """The project's own files that import the core."""
    return {file for file in tree.files if is_kept(file) and _IMPORTS_CORE.search(tree.content(file) or b"")}


def files_on_core(project: Project) -> tuple[int, int]:
    """How many files import the core, and how many the copy: 0 and 0 before the shim is there."""
    if project.stage != PACKAGE:
        return 0, 0
    uses = find_uses(project.tree, project.copy, [*project.ready().api])
    left = {use.source.path for use in uses if is_kept(use.source.path)}
    return len(importing_core(project.tree) - left), len(left)


# ------------------------------------------------------------------ the change to a stage


class Step(NamedTuple):
    """A change to a stage."""

    changes: list[Change]
    message: str  # of the commit
    to_do: list[str]  # what is left to a person, line by line


def step_to(project: Project, stage: str, requirements: Sequence[str], accept_edits: bool) -> Step:
    """The change to a later stage. RefusalError with what to do where it cannot be made."""
    here, there = STAGES.index(project.stage), STAGES.index(stage)
    if there <= here:
        beyond = "" if there == here else f", beyond {stage}; `git revert` of the commit that moved it goes back"
        msg = f"{project.repo} is at {project.stage} already{beyond}"
        raise RefusalError(msg)
    if requirements and stage == VENDORED:
        raise RefusalError("--requirement says where packages come from: it belongs to --to package and --to core")
    adapter, seen = project.ready(), project.inspected()
    refuse_losses(project.tree, seen, adapter, accept_edits=accept_edits)
    if stage == VENDORED:
        return Step(*afresh(seen, adapter), [])
    step = Step([], f"{seen.path} replaced by {adapter.distribution}", [])
    if stage == CORE_STAGE:
        step = _to_core(project, adapter)
    if seen.state != "shim":
        step.changes.insert(0, Change(seen.path, seen.raw, like(shim(adapter).encode(), seen.raw)))
    needed = [adapter.distribution, CORE_DISTRIBUTION] if stage == CORE_STAGE else [adapter.distribution]
    listed, left = _listed(project.repo, needed, requirements)
    return Step([*step.changes, *listed], step.message, [*step.to_do, *left])


def _listed(repo: Path, needed: Sequence[str], requirements: Sequence[str]) -> tuple[list[Change], list[str]]:
    """What is needed among the dependencies, as a change; and what is left to a person."""
    given = {name_in(one): one for one in requirements}
    every = {name: f"{name}>={version()}" for name in needed} | given
    wanted = [one for name, one in every.items() if not is_listed(repo, name)]
    change = added(repo, wanted) if wanted else None
    left = []
    if wanted and change is None:
        left = ["add by hand, where this project lists its dependencies:", *(f"  {one}" for one in wanted)]
    if any("@" in one for one in wanted):
        left.append("PyPI refuses a package whose dependencies have a direct reference (`NAME @ URL`)")
    left += [_ON_NO_INDEX.format(name) for name in needed if name not in given and not is_released()]
    return [change] if change else [], left


def _to_core(project: Project, adapter: Adapter) -> Step:
    """Every file that is proven, and what is left to a person."""
    tree = project.tree
    uses = find_uses(tree, project.copy, [*adapter.api])
    absent = sorted(tree.absent.keys() & {use.source.path for use in uses})
    if absent:
        names = ", ".join(absent[:5])
        msg = f"a sparse checkout leaves out {names}; `git sparse-checkout disable` brings back what has to be seen"
        raise RefusalError(msg)
    files = [file for file in look_at_files(tree, uses, adapter) if file.source.path in tree.tracked]
    changes, left = [], []
    for file in files:
        path = file.source.path
        if file.is_proven:
            changes.append(Change(path, tree.content(path), file.edits.result.encode(file.source.encoding)))
        if file.stays:
            left.append(f"{path} stays: {file.stays}")
        for row in file.rows:
            if row.is_by_hand:
                left += [f"{path}:{row.site.line}: {row.site.text}", f"    {row.core.removeprefix(BY_HAND)}"]
    if not changes:
        first = "no file can move as it is. Change these places by hand, commit, and run this again:"
        raise RefusalError(first, *(f"  {one}" for one in left))
    to_do = ["left to a person:", *(f"  {line}" for line in left)] if left else []
    return Step(changes, f"{len(changes)} of {len(files)} files moved to {CORE}", to_do)
