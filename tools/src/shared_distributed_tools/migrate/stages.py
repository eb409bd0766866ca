# SPDX-License-Identifier: MIT
"""At which stage a project is, read off its files, and the change that leads to another one.

original  the project's own copy
vendored  the same file, self-contained, from this release
package   a shim in its place, and the adapter among the project's dependencies
core      call sites that use the core itself; the shim stays for others, unless it is removed
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ..catalog import ADAPTERS, CORE, CORE_DISTRIBUTION, CORE_FOLDER, Adapter, core_names
from ..errors import RefusalError
from ..render.released import is_released
from ..render.shim import shim, shim_of
from ..render.sources import version
from ..repo.changes import Change, checkout_of, refuse_unless_held
from ..repo.dependencies import added, home_of, is_listed, name_in, too_old
from ..repo.files import checked, like
from ..repo.git import Checkout
from ..repo.tree import Tree
from ..repo.uses import Use, find_uses_of_each
from ..scan.sisters import ADVICE
from ..scan.survey import Finding, find_copy
from ..vendor.content import afresh, refuse_losses
from ..vendor.state import Vendored, inspect, is_kept, look_through, places
from .proof import BY_HAND, File
from .to_core import look_at_files

ORIGINAL, VENDORED, PACKAGE, CORE_STAGE = "original", "vendored", "package", "core"
STAGES = (ORIGINAL, VENDORED, PACKAGE, CORE_STAGE)
NO_COPY = "no copy"
_CORE_FILE = f"{CORE}/__init__.py"  # what an import of the core means, as if it were in the tree
_NO_RELEASE = (
    "{0} is on no package index yet, and whoever registers that name decides what is installed; say where it is "
    "really: --requirement '{0} @ git+https://HOST/OWNER/REPO.git@REVISION#subdirectory={1}'"
)
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    pass


class NotMovableError(RefusalError):
    """A project that cannot be moved on: its state in a few words, and the message says what to do."""

    def __init__(self, state: str, advice: str, stage: str = "", adapter: str = "") -> None:
        super().__init__(advice)
        self.state, self.stage, self.adapter = state, stage, adapter


@dataclass(eq=False)
class Project:
    """One repo that can be moved on, or is on the core."""

    repo: Path
    tree: Tree
    stage: str
    copy: str = ""  # the file that the migration is about, with forward slashes; on the core there may be none
    adapter: Adapter | None = None  # None where the header of a vendored file cannot be read, or there is no copy
    finding: Finding | None = None  # what a scan says of the copy, while it is the project's own
    progress: Progress = _silent

    def ready(self) -> Adapter:
        """The adapter. RefusalError where it is not known."""
        if self.adapter is None:
            msg = f"{self.copy}: {self.inspected().meaning}"
            raise RefusalError(msg)
        return self.adapter

    def inspected(self) -> Vendored:
        """The copy's file as it is."""
        return inspect(self.repo, self.copy)

    @cached_property
    def _every_use(self) -> list[Use]:
        copies: dict[str, Collection[str]] = {_CORE_FILE: core_names()}
        if self.copy:
            copies[self.copy] = [
                *(self.adapter.api if self.adapter else ()),
                *(self.finding.names if self.finding else ()),
            ]
        return find_uses_of_each(self.tree, copies, self.progress)

    @property
    def uses(self) -> list[Use]:
        """The places that use the copy."""
        return [use for use in self._every_use if use.copy == self.copy]

    @property
    def uses_of_core(self) -> list[Use]:
        """The places in the project's own files that use the core."""
        return [use for use in self._every_use if use.copy == _CORE_FILE and is_kept(use.source.path)]

    @cached_property
    def files(self) -> list[File]:
        """The files that use the copy, and what becomes of each in the core."""
        changed = self.finding.changed if self.finding else ()
        return look_at_files(self.tree, self.uses, self.ready(), changed) if self.uses else []

    def refuse_losses(self, *, accept_edits: bool) -> None:
        """RefusalError if the copy has what its adapter has not."""
        refuse_losses(self.inspected(), self.ready(), self.finding, self.uses, accept_edits=accept_edits)

    def files_on_core(self) -> tuple[int, int]:
        """How many files import the core, and how many the copy."""
        left = {use.source.path for use in self.uses if is_kept(use.source.path)}
        return len({use.source.path for use in self.uses_of_core} - left), len(left)


def look_at(repo: Path, path: str | None = None, progress: Progress = _silent) -> Project:
    """Read a project's stage off its files. Reads only. path: the copy, where there are several."""
    path = None if path is None else checked(repo, path).relative_to(repo).as_posix()
    tree = Tree(repo, Checkout.around(repo))
    seen = look_through(tree, progress)
    ours = [file for file in seen.ours if path in (None, file)]
    if ours:
        vendored = inspect(repo, _only(ours))
        if vendored.state == "shim":
            project = Project(repo, tree, PACKAGE, vendored.path, shim_of(vendored.raw or b""), progress=progress)
            on_core, left = project.files_on_core()
            project.stage = CORE_STAGE if on_core and not left else PACKAGE
            return project
        adapter = ADAPTERS.get(vendored.header.adapter) if vendored.header else None
        return Project(repo, tree, VENDORED, vendored.path, adapter, progress=progress)
    known = [(place, adapter.name) for adapter in ADAPTERS.values() for place in places(repo, adapter)]
    for place, _ in known:
        inspect(repo, place)  # a file that cannot be read is no file that is not there
    files = [file for file in seen.gathering if (is_kept(file) if path is None else file == path)]
    findings = {one.path: one for one in (find_copy(tree, file) for file in files) if one and one.kind != "vendored"}
    copies = {one.path: one.adapter for one in findings.values() if one.adapter and one.kind in ("exact", "edited")}
    copies = copies or {  # where an adapter's project keeps it, however it is written
        place: name for place, name in known if place in files and b"AllGather" in (tree.content(place) or b"")
    }
    if copies:
        copy = _only(copies)
        return Project(repo, tree, ORIGINAL, copy, ADAPTERS[copies[copy]], findings.get(copy), progress)
    project = Project(repo, tree, CORE_STAGE, progress=progress)
    if not findings and path is None and project.uses_of_core:
        return project
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
    if one.notes and one.notes[0] in ADVICE.values():
        return NotMovableError("its own way to gather", f"{one.path}: {one.notes[0]}", ORIGINAL)
    advice = (
        f"{one.path} gathers in a way of its own ({lines}), which no adapter covers. Use `all_gather` of "
        f"{CORE_DISTRIBUTION} in its place; or, in a checkout of this project, `adapters new NAME --like ADAPTER "
        f"--replaces {one.path} --original {one.path}` begins an adapter for it"
    )
    return NotMovableError("its own way to gather", advice, ORIGINAL)


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
    project.refuse_losses(accept_edits=accept_edits)
    home = home_of(project.repo, seen.path)
    old = [line for line in [too_old(home)] if line]
    if stage == VENDORED:
        return Step(*afresh(seen, adapter), old)
    step = Step([], f"{seen.path} replaced by {adapter.distribution}", old)
    if stage == CORE_STAGE:
        step = _to_core(project, old)
    if seen.state != "shim":
        step.changes.insert(0, Change(seen.path, seen.raw, like(shim(adapter).encode(), seen.raw)))
    needed = {adapter.distribution: f"packages/{adapter.name}"}
    if stage == CORE_STAGE:
        needed[CORE_DISTRIBUTION] = CORE_FOLDER
    listed, left = _listed(project.repo, home, needed, requirements)
    return Step([*step.changes, *listed], step.message, [*step.to_do, *left])


def in_the_way(project: Project) -> list[str]:
    """Why `migrate` would refuse the next stage, line by line, wherever packages come from."""
    try:
        seen = project.inspected()
        project.refuse_losses(accept_edits=False)
        changes = _to_core(project, []).changes if seen.state == "shim" else [Change(seen.path, seen.raw, b"")]
        refuse_unless_held(checkout_of(project.repo), project.repo, changes)
    except RefusalError as error:
        return [*error.args]
    return []


def _listed(
    repo: Path, home: Path, needed: dict[str, str], requirements: Sequence[str]
) -> tuple[list[Change], list[str]]:
    """What is needed among the dependencies, as a change; and what is left to a person.

    needed: distributions, and where each is in the sources.
    """
    given = {name_in(one): one for one in requirements}
    every = {name: f"{name}>={version()}" for name in needed} | given
    wanted = {name: text for name, text in every.items() if not is_listed(home, name)}
    unknown = [name for name in wanted if name not in given]
    if unknown and not is_released():
        raise RefusalError(*(_NO_RELEASE.format(name, needed[name]) for name in unknown))
    change = added(repo, home, [*wanted.values()]) if wanted else None
    left = []
    if wanted and change is None:
        where = "here" if home == repo else f"in {home.relative_to(repo).as_posix()}"
        first = f"add by hand, where the project {where} lists its dependencies:"
        left = [first, *(f"  {text}" for text in wanted.values())]
    if any("@" in text for text in wanted.values()):
        left.append("PyPI refuses a package whose dependencies have a direct reference (`NAME @ URL`)")
    return [change] if change else [], left


def _to_core(project: Project, left: list[str]) -> Step:
    """Every file that is proven, and what is left to a person."""
    tree = project.tree
    absent = sorted(tree.absent.keys() & {use.source.path for use in project.uses})
    if absent:
        names = ", ".join(absent[:5])
        msg = f"a sparse checkout leaves out {names}; `git sparse-checkout disable` brings back what has to be seen"
        raise RefusalError(msg)
    files = [file for file in project.files if file.source.path in tree.tracked]
    changes: list[Change] = []
    by_hand: list[str] = []
    for file in files:
        path = file.source.path
        if file.is_proven:
            changes.append(Change(path, tree.content(path), file.edits.result.encode(file.source.encoding)))
        if file.stays:
            by_hand.append(f"  {path} stays: {file.stays}")
        for row in file.rows:
            if row.is_by_hand:
                by_hand += [f"  {path}:{row.site.line}: {row.site.text}", f"      {row.core.removeprefix(BY_HAND)}"]
    if not files:
        msg = f"nothing in this repo uses {project.copy}: there is nothing to move to the core"
        raise RefusalError(msg)
    if not changes:
        first = "no file can move as it is. Change these places by hand, commit, and run this again:"
        raise RefusalError(first, *by_hand)
    to_do = ["left to a person:", *by_hand] if by_hand else []
    return Step(changes, f"{len(changes)} of {len(files)} files moved to {CORE}", [*left, *to_do])
