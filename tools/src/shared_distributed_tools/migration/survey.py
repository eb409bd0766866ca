# SPDX-License-Identifier: MIT
"""Finds copies of the family in any tree, by structure. Reads only, and never imports what it looks at."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..header import TamperedError, looks_generated, split
from .compare import Comparison, Difference, nearest, percent
from .definitions import Definition, NotTextError, Parsed, decode, may_hold_the_family, parse
from .fingerprints import Variant
from .relatives import find_relative
from .scopes import Undefined
from .sites import Site, find_uses
from .tree import SourceTree
from .walk import Passed, read_file, walk


@dataclass(frozen=True)
class Part:
    """A definition of a copy: its lines, and the variant's name for it."""

    name: str
    known: str
    line: int
    end: int


@dataclass(frozen=True)
class Finding:
    """A copy.

    kind: "exact", "edited", "inlined" (in a larger file, exact or not), "relative" (no adapter covers it), or
    "vendored" (already ours).
    """

    path: str  # below root, with forward slashes
    root: str  # the PATH that was asked for, or the folder of a file that was
    kind: str
    variant: str | None = None
    adapter: str | None = None
    similarity: int = 0  # per cent; 100 if every definition is the variant's
    differences: tuple[Difference, ...] = ()
    definitions: tuple[Part, ...] = ()
    undefined: tuple[Undefined, ...] = ()  # each name once, where it is used first
    notes: tuple[str, ...] = ()
    sites: tuple[Site, ...] = ()

    @property
    def names(self) -> list[str]:
        """What other files may import from it."""
        return list(dict.fromkeys(part.name.partition(".")[0] for part in self.definitions))

    def holds(self, site: Site) -> bool:
        """Whether a place is in the copy itself."""
        return site.path == self.path and any(part.line <= site.line <= part.end for part in self.definitions)


@dataclass
class Survey:
    """What a scan found."""

    findings: list[Finding] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)
    files: int = 0
    lines: int = 0

    @property
    def copies(self) -> list[Finding]:
        """Findings that are not ours already."""
        return [finding for finding in self.findings if finding.kind != "vendored"]


def _no_progress(done: int, total: int) -> None:
    pass


def scan(
    paths: Iterable[Path],
    variants: Sequence[Variant],
    progress: Callable[[int, int], None] = _no_progress,
) -> Survey:
    """Look at every Python file under some paths. `progress` is told files done, and how many there are."""
    paths = list(paths)
    walked = walk(paths)
    survey = Survey(passed=walked.passed)
    for done, (file, root) in enumerate(walked.files):
        progress(done, len(walked.files))
        _look_at(file, root, variants, survey)
    progress(len(walked.files), len(walked.files))
    folders = {str(path) for path in paths if path.is_dir()}
    survey.findings = _with_sites(survey.findings, folders)
    survey.findings.sort(key=lambda finding: (finding.root, finding.path))
    survey.passed.sort()
    return survey


def _look_at(file: Path, root: Path, variants: Sequence[Variant], survey: Survey) -> None:
    try:
        content = read_file(file)
        text, problem = decode(content)
    except (OSError, NotTextError) as error:
        reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        survey.passed.append(Passed(file.as_posix(), reason))
        return
    survey.files += 1
    survey.lines += text.count("\n") + (not text.endswith("\n") and bool(text))
    if not may_hold_the_family(text):
        return
    where = (file.relative_to(root).as_posix(), str(root))
    if looks_generated(content):
        survey.findings.append(_vendored(*where, content))
        return
    parsed = parse(text)
    parsed.problem = parsed.problem or problem
    finding = find_copy(parsed, *where, variants)
    if finding is not None:
        survey.findings.append(finding)
    elif parsed.problem:
        survey.passed.append(Passed(file.as_posix(), parsed.problem))


def _vendored(path: str, root: str, content: bytes) -> Finding:
    try:
        adapter, note = split(content.replace(b"\r\n", b"\n"))[0].adapter, "see `adapters check`"
    except TamperedError as error:
        adapter, note = None, f"{error}; see `adapters check`"
    return Finding(path, root, "vendored", adapter=adapter, notes=(note,))


def find_copy(parsed: Parsed, path: str, root: str, variants: Sequence[Variant]) -> Finding | None:
    """The copy in a file, or None. Call sites are added by `scan`."""
    comparison = nearest(parsed, variants)
    relative = None if comparison is not None and comparison.is_near else find_relative(parsed)
    if relative is not None:
        finding = _relative(parsed, relative, comparison, path, root)
    elif comparison is not None:
        finding = _copy(parsed, comparison, path, root)
    else:
        return None
    if parsed.problem:
        finding = _noted(finding, f"best effort: {parsed.problem}")
    return finding


def _copy(parsed: Parsed, comparison: Comparison, path: str, root: str) -> Finding:
    family = [pair.mine for pair in comparison.pairs]
    is_inlined = parsed.size > 2 * sum(one.size for one in family)
    extra = tuple(
        Difference(one.name, "extra", "", one.node.lineno)
        for one in parsed.definitions
        if not is_inlined and one.parent is None and one.kind != "assignment" and not _touches(one, family)
    )
    is_exact = comparison.is_exact and not extra
    variant = comparison.variant
    finding = Finding(
        path,
        root,
        "inlined" if is_inlined else "exact" if is_exact else "edited",
        variant.name,
        variant.adapter,
        percent(comparison.similarity, exact=is_exact),
        comparison.differences + extra,
        tuple(
            Part(pair.mine.name, pair.known.name, pair.mine.first_line, pair.mine.last_line)
            for pair in comparison.pairs
        ),
        notes=_origins(comparison),
    )
    return _with_undefined(finding, parsed, family, is_whole_file=not is_inlined)


def _relative(parsed: Parsed, relative: Definition, comparison: Comparison | None, path: str, root: str) -> Finding:
    part = Part(relative.name, "", relative.first_line, relative.last_line)
    alike = percent(comparison.similarity, exact=False) if comparison else 0
    notes = (f"nearest variant: {comparison.variant.name}, {alike} % similar",) if comparison else ()
    finding = Finding(path, root, "relative", similarity=alike, definitions=(part,), notes=notes)
    return _with_undefined(finding, parsed, [relative], is_whole_file=False)


def _touches(definition: Definition, family: list[Definition]) -> bool:
    return any(one.is_inside(definition) for one in family)


def _origins(comparison: Comparison) -> tuple[str, ...]:
    """Names that the copy takes from elsewhere, and the variant does not define or takes from another place."""
    known = comparison.variant.outside
    return tuple(
        f"{name} is imported from {origin}" + (" (undefined in the variant)" if known[name] == "undefined" else "")
        for name, origin in comparison.outside.items()
        if origin != "undefined" and name in known and known[name] != origin
    )


def _with_undefined(finding: Finding, parsed: Parsed, family: list[Definition], *, is_whole_file: bool) -> Finding:
    """Names that nothing defines: of the whole file if that is the copy, else of the copy's definitions."""
    scopes = parsed.scopes
    reason = "a star import" if scopes.has_star else "code that makes names as it runs" if scopes.is_dynamic else ""
    reason = "parts that cannot be read" if parsed.problem else reason
    if reason:
        return _noted(finding, f"undefined names: cannot tell, the file has {reason}")
    lines = {line for one in family for line in range(one.first_line, one.last_line + 1)}
    found = [one for one in scopes.undefined() if is_whole_file or one.line in lines]
    first = {one.name: one for one in reversed(found)}
    return replace(finding, undefined=tuple(sorted(first.values())))


def _with_sites(findings: list[Finding], folders: Collection[str]) -> list[Finding]:
    """Findings with the places that import and use them, as far as folders were asked for."""
    trees: dict[str, SourceTree] = {}
    done = []
    for finding in findings:
        if finding.names and finding.root not in folders:
            finding = _noted(finding, "call sites: give the folder around the file to have them listed")
        elif finding.names:
            try:
                tree = trees.get(finding.root) or trees.setdefault(finding.root, SourceTree(Path(finding.root)))
                found = [use.site for use in find_uses(tree, finding.path, finding.names)]
                finding = replace(finding, sites=tuple(site for site in found if not finding.holds(site)))
            except (OSError, RecursionError) as error:  # a file that cannot be read, or is nested too deeply
                reason = str(error) if isinstance(error, OSError) else "a file is nested too deeply"
                finding = _noted(finding, f"call sites: cannot tell, {reason}")
        done.append(finding)
    return done


def _noted(finding: Finding, note: str) -> Finding:
    return replace(finding, notes=(*finding.notes, note))
