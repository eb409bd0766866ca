# SPDX-License-Identifier: MIT
"""Finds copies of the known files in any tree, by structure. Reads only, and never imports what it looks at."""

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..render.header import looks_generated, split
from ..render.verify import undefined_names
from ..repo.files import with_lf
from ..repo.tree import Source, Tree, Unread
from ..repo.uses import Site, find_uses
from .compare import Comparison, Difference, nearest
from .fingerprint import Definition, Original, definitions, known_originals
from .relatives import find_relative

_WORD = b"gather"  # every copy contains it


class Part(NamedTuple):
    """A definition of a copy, and its lines."""

    name: str
    line: int
    end: int


class Undefined(NamedTuple):
    """A name that nothing defines, and the line that uses it first."""

    line: int
    name: str


class Finding(NamedTuple):
    """A copy.

    kind: "exact", "edited", "inlined" (in a larger file, exact or not), "relative" (no adapter covers it), or
    "vendored" (already ours).
    """

    path: str  # below root, with forward slashes
    root: str  # the PATH that was asked for, or the folder of a file that was
    kind: str
    adapter: str | None = None
    similarity: int = 0  # the share of common statements, in per cent; only an exact copy scores 100
    differences: tuple[Difference, ...] = ()
    definitions: tuple[Part, ...] = ()
    undefined: tuple[Undefined, ...] = ()
    notes: tuple[str, ...] = ()
    sites: tuple[Site, ...] = ()

    @property
    def names(self) -> list[str]:
        """What other files may import from it."""
        return [part.name for part in self.definitions]


@dataclass
class Survey:
    """What a scan found."""

    findings: list[Finding] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    files: int = 0

    @property
    def copies(self) -> list[Finding]:
        """Findings that are not ours already."""
        return [finding for finding in self.findings if finding.kind != "vendored"]


def scan(
    paths: Iterable[Path],
    originals: Sequence[Original] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Survey:
    """Look at every Python file under some paths, and list where copies are used.

    progress: told how many files are done, and how many there are.
    """
    survey = Survey()
    trees = [Tree(path) for path in sorted(set(paths))]
    total = sum(len(tree.files) for tree in trees)
    for tree in trees:
        found = []
        for path in tree.files:
            progress(survey.files, total)
            found.append(find_copy(tree, path, originals))
            survey.files += 1
        survey.findings += [_with_sites(tree, finding) for finding in found if finding]
        survey.unread += [one._replace(path=(tree.root / one.path).as_posix()) for one in tree.unread]
    survey.findings.sort(key=lambda finding: (finding.root, finding.path))
    return survey


def find_copy(tree: Tree, path: str, originals: Sequence[Original] | None = None) -> Finding | None:
    """The copy in a file of a tree, or None; without the places that use it."""
    content = tree.content(path)
    if content is None or _WORD not in content.lower():
        return None
    finding = Finding(path, str(tree.root), "relative")
    if looks_generated(content):
        header, _ = split(with_lf(content))
        adapter = header.adapter if header else None
        return finding._replace(kind="vendored", adapter=adapter, notes=("see `adapters check`",))
    source = tree.source(path)
    if source is None:
        return None
    try:
        found = definitions(source.tree)
        comparison = nearest(found, known_originals() if originals is None else originals)
        relative = None if comparison else find_relative(source.tree)
    except RecursionError:
        tree.give_up(path, "nested too deeply")
        return None
    if comparison:
        return _with_undefined(_compared(finding, source, comparison, found), source)
    if relative:
        part = Part(relative.name, relative.lineno, relative.end_lineno or relative.lineno)
        return _with_undefined(finding._replace(definitions=(part,)), source)
    return None


def _compared(finding: Finding, source: Source, comparison: Comparison, found: list[Definition]) -> Finding:
    mine = list(comparison.pairs.values())
    is_inlined = _size(source.tree) > 2 * sum(_size(one.node) for one in mine)
    differences = comparison.differences
    if not is_inlined:
        extra = [one for one in found if one not in mine and not isinstance(one.node, ast.Assign)]
        differences += [Difference(one.name, "extra", "", one.node.lineno) for one in extra]
    return finding._replace(
        kind="inlined" if is_inlined else "edited" if differences else "exact",
        adapter=comparison.original.adapter,
        similarity=min(99, int(100 * comparison.similarity)) if differences else 100,
        differences=tuple(differences),
        definitions=tuple(Part(one.name, *one.span) for one in mine),
    )


def _size(node: ast.AST) -> int:
    """How many statements some code has, imports aside."""
    imports = (ast.Import, ast.ImportFrom)
    return sum(isinstance(one, ast.stmt) and not isinstance(one, imports) for one in ast.walk(node))


def _with_undefined(finding: Finding, source: Source) -> Finding:
    """The names that the copy uses and nothing defines."""
    if any(alias.name == "*" for node in source.imports for alias in node.names):
        return finding._replace(notes=("undefined names: cannot tell, the file has a star import",))
    missing = undefined_names(source.text)
    uses = [node for node in ast.walk(source.tree) if isinstance(node, ast.Name) and node.id in missing]
    first: dict[str, int] = {}
    for node in sorted(uses, key=lambda node: node.lineno):
        if any(part.line <= node.lineno <= part.end for part in finding.definitions):
            first.setdefault(node.id, node.lineno)
    return finding._replace(undefined=tuple(sorted(Undefined(line, name) for name, line in first.items())))


def _with_sites(tree: Tree, finding: Finding) -> Finding:
    if finding.kind == "vendored" or len(tree.files) == 1:
        return finding
    return finding._replace(sites=tuple(use.site for use in find_uses(tree, finding.path, finding.names)))
