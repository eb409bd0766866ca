# SPDX-License-Identifier: MIT
"""Where a repo stands: which file is its copy, which adapter covers it, and how far the migration has come."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..catalog import Adapter, adapter_named
from ..errors import RefusalError
from ..files import read
from ..header import looks_generated
from ..paths import adapters_that_fit, locate, lock_path
from ..shim import shim_of
from .fingerprints import Variant, shipped
from .journal import describe
from .record import RECORD, Record, read_record
from .survey import Finding, scan
from .syntax import bound_names
from .tree import SourceTree

ORIGINAL, VENDORED, PACKAGE, CORE_STAGE = "original", "vendored", "package", "core"
STAGES = (ORIGINAL, VENDORED, PACKAGE, CORE_STAGE)


@dataclass(frozen=True)
class Standing:
    """One repo. `problem` says why the migration cannot go on from here, and what to do."""

    repo: Path
    record: Record
    stage: str = ORIGINAL
    copy: str = ""  # the file that the migration is about, with forward slashes
    adapter: Adapter | None = None
    finding: Finding | None = None  # what a scan says of the copy, where it is still the project's own
    problem: str = ""

    def ready(self) -> Adapter:
        """The adapter. RefusalError where the migration cannot go on."""
        if self.problem or self.adapter is None:
            raise RefusalError(self.problem)
        return self.adapter


def stand(repo: Path, tree: SourceTree, path: str | None = None, known: Sequence[Variant] = ()) -> Standing:
    """Look at a repo: at its record first, at its files where it has none. Reads only.

    path: the copy, where there are several. known: variants beside those that this release knows.
    """
    record = read_record(repo)
    if record.pending is not None:
        return _recorded(repo, record, describe(repo, record.pending))
    if record.stages:
        problem = _contradiction(repo, record)
        if path is not None and path != record.copy:
            problem = f"{repo / RECORD} is about {record.copy}; give the folder around {path} as REPO to move it alone"
        return _recorded(repo, record, problem)
    return _unrecorded(repo, record, tree, path, [*shipped(), *known])


def _recorded(repo: Path, record: Record, problem: str) -> Standing:
    stage = record.stages[-1].stage if record.stages else ORIGINAL
    return Standing(repo, record, stage, record.copy, adapter_named(record.adapter), problem=problem)


def _contradiction(repo: Path, record: Record) -> str:
    """Files that were deleted, or put back without the record, or the other way round."""
    content = read(repo / record.copy)
    stage = record.stages[-1].stage
    is_as_recorded = {
        VENDORED: content is not None and looks_generated(content),
        PACKAGE: content is not None and shim_of(content) is not None,
        CORE_STAGE: content is None,
    }[stage]
    if is_as_recorded or (stage == PACKAGE and content is not None and not looks_generated(content)):
        return ""  # an edited shim is an edit: `rollback` and the next stage look at it
    if content is None:
        left = " and ".join([RECORD, *([lock_path(Path(record.copy)).name] if stage == VENDORED else [])])
        return (
            f"{record.copy} was deleted, and {RECORD} says that this repo is at {stage}. Restore it from version "
            f"control; if nothing here gathers any more, delete {left} too"
        )
    return (
        f"{RECORD} says that this repo is at {stage}, and {record.copy} says otherwise: one of them was put back "
        "without the other. Restore both from the same commit"
    )


def _unrecorded(
    repo: Path, record: Record, tree: SourceTree, path: str | None, variants: Sequence[Variant]
) -> Standing:
    """By what the files look like: a shim, a vendored file, a copy; else by the place where a project keeps it."""
    found = [finding for finding in scan([repo], variants).findings if finding.path in tree.contents]
    findings = {finding.path: finding for finding in found if path in (None, finding.path)}
    standings = {
        file: Standing(repo, record, PACKAGE, file, shim)
        for file, content in tree.contents.items()
        if path in (None, file) and (shim := shim_of(content)) is not None
    }
    for file, one in findings.items():
        if one.adapter and one.kind in ("exact", "edited", "vendored"):
            stage = VENDORED if one.kind == "vendored" else ORIGINAL
            standings[file] = Standing(repo, record, stage, file, adapter_named(one.adapter), one)
    if not standings:
        standings = {
            file: Standing(repo, record, ORIGINAL, file, adapter, findings.get(file))
            for file, adapter in _at_its_place(repo, tree)
            if path in (None, file)
        }
    if len(standings) > 1:
        problem = f"several copies: {', '.join(sorted(standings))}; say which with --path"
        return Standing(repo, record, problem=problem)
    return next(iter(standings.values()), None) or _not_movable(repo, record, list(findings.values()), path)


def _at_its_place(repo: Path, tree: SourceTree) -> Iterator[tuple[str, Adapter]]:
    """Files where an adapter's project keeps its copy, and that define what a copy defines, however they do it."""
    for adapter in adapters_that_fit(repo):
        file = locate(repo, adapter, None).relative_to(repo).as_posix()
        source = tree.source(file) if file in tree.contents else None
        if source is not None and "AllGather" in bound_names(source.tree):
            yield file, adapter


def _not_movable(repo: Path, record: Record, findings: list[Finding], path: str | None) -> Standing:
    for finding in findings:
        lines = ", ".join(f"{part.name} (lines {part.line} to {part.end})" for part in finding.definitions)
        if finding.kind == "inlined" and finding.adapter:
            problem = (
                f"{finding.path} holds a copy inside a larger file: {lines}. Move these definitions into a file of "
                "their own, say distributed.py beside it, import them from there, commit, and run this again"
            )
            return Standing(repo, record, ORIGINAL, finding.path, adapter_named(finding.adapter), finding, problem)
        problem = f"{finding.path} gathers in a way of its own ({lines}), which no adapter covers; see `adapters scan`"
        return Standing(repo, record, ORIGINAL, finding.path, None, finding, problem)
    where = f"{path} in {repo}" if path else str(repo)
    return Standing(repo, record, problem=f"no copy found: {where}; `adapters scan` looks in any folder")
