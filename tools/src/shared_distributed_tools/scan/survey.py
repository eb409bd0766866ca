# SPDX-License-Identifier: MIT
"""Finds copies of the known files in any tree, by structure. Reads only, and never imports what it looks at."""

import ast
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..render.header import looks_generated, split
from ..render.verify import undefined_names
from ..repo.files import with_lf
from ..repo.tree import Source, Tree, Unread
from ..repo.uses import Site, find_uses_of_each
from .compare import Difference, differences, paired, similarity
from .fingerprint import Definition, Known, Node, definitions, known_originals
from .helpers import mending
from .relatives import find_relative
from .sisters import ADVICE, nearest_sister

GATHER_WORD = b"gather"  # every copy contains it


class Place(NamedTuple):
    """A name and its lines: of a definition, or where a name is used."""

    name: str
    line: int
    end: int


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
    definitions: tuple[Place, ...] = ()
    undefined: tuple[Place, ...] = ()  # names that nothing defines, where they are used first
    notes: tuple[str, ...] = ()
    helpers: tuple[Place, ...] = ()  # what the file defines beyond the original's definitions
    sites: tuple[Site, ...] = ()

    @property
    def names(self) -> list[str]:
        """What other files may import from it."""
        return [part.name for part in (*self.definitions, *self.helpers)]

    @property
    def changed(self) -> set[str]:
        """The definitions that are not the original's."""
        return {one.name for one in self.differences}


class Survey(NamedTuple):
    """What a scan found."""

    findings: list[Finding]
    unread: list[Unread]
    files: int


def scan(paths: Iterable[Path], progress: Callable[[int, int], None] = lambda done, total: None) -> Survey:
    """Look at every Python file under some paths, and list where copies are used.

    progress: told how many files are done, and how many there are.
    """
    trees = [Tree(path) for path in sorted(set(paths))]
    total = sum(len(tree.files) for tree in trees)
    findings: list[Finding] = []
    unread: list[Unread] = []
    done = 0
    for tree in trees:
        found = []
        for path in tree.files:
            progress(done, total)
            done += 1
            finding = find_copy(tree, path)
            if finding:
                found.append(finding)
        findings += _with_sites(tree, found)
        unread += [one._replace(path=(tree.root / one.path).as_posix()) for one in tree.unread]
    return Survey(findings, unread, total)


def _with_sites(tree: Tree, findings: list[Finding]) -> list[Finding]:
    """Copies with the places that use them."""
    copies = {finding.path: finding.names for finding in findings if finding.kind != "vendored"}
    sites: dict[str, list[Site]] = {path: [] for path in copies}
    for use in find_uses_of_each(tree, copies) if copies else ():
        sites[use.copy].append(use.site)
    return [finding._replace(sites=tuple(sites.get(finding.path, ()))) for finding in findings]


def find_copy(tree: Tree, path: str) -> Finding | None:
    """The copy in a file of a tree, or None; without the places that use it."""
    content = tree.content(path)
    if content is None or GATHER_WORD not in content.lower():
        return None
    finding = Finding(path, str(tree.root), "vendored")
    if looks_generated(content):
        header, _ = split(with_lf(content))
        return finding._replace(adapter=header.adapter if header else None)
    source = tree.source(path)
    try:
        return _compared(finding, source) if source else None
    except (RecursionError, MemoryError):
        tree.give_up(path, "nested too deeply")
    except (SyntaxError, ValueError) as error:  # that the parser lets pass: a duplicate argument, `global` of one
        tree.give_up(path, f"does not compile: {error}")
    return None


def _compared(finding: Finding, source: Source) -> Finding | None:
    """The nearest known file that a file, or a part of it, comes from; else a relative; else None."""
    found = definitions(source.tree)
    copies = []
    for adapter, known in known_originals().items():
        pairs = paired(found, known)
        if pairs:
            copies.append(_copy(finding._replace(adapter=adapter), source, found, pairs, known))
    sister = nearest_sister(found)
    if sister and all(100 * sister.similarity > one.similarity for one in copies):
        parts = [(one.name, one.node) for one in sister.pairs.values()]
        relative = _with_definitions(finding._replace(kind="relative"), source, parts)
        return relative._replace(notes=(ADVICE[sister.name], *relative.notes))
    function = None if copies else find_relative(source.tree)
    if function:
        return _with_definitions(finding._replace(kind="relative"), source, [(function.name, function)])
    return min(copies, key=lambda one: (-one.similarity, len(one.differences), one.adapter), default=None)


def _copy(
    finding: Finding, source: Source, found: list[Definition], pairs: dict[str, Definition], known: dict[str, Known]
) -> Finding:
    parts = [(one.name, one.node) for one in pairs.values()]
    is_inlined = _size(source.tree) > 2 * sum(_size(node) for _, node in parts)
    different = list(differences(pairs, known))
    extra: list[Definition] = []
    if not is_inlined:
        copied = {id(one.node) for one in pairs.values()}
        extra = [one for one in found if id(one.node) not in copied and not isinstance(one.node, ast.Assign)]
        plain = mending(extra, pairs.values(), known)
        different += [Difference(one.name, "extra", line=one.node.lineno) for one in extra if one.name not in plain]
    finding = finding._replace(
        kind="inlined" if is_inlined else "edited" if different else "exact",
        similarity=min(99, int(100 * similarity(pairs, known))) if different else 100,
        differences=tuple(different),
        helpers=tuple(Place(one.name, *_lines(one.node)) for one in extra),
    )
    return _with_definitions(finding, source, parts)


def _size(node: ast.AST) -> int:
    """How many statements some code has, imports aside."""
    imports = (ast.Import, ast.ImportFrom)
    return sum(isinstance(one, ast.stmt) and not isinstance(one, imports) for one in ast.walk(node))


def _with_definitions(finding: Finding, source: Source, parts: Sequence[tuple[str, Node]]) -> Finding:
    """The lines of a copy's definitions, and the names in them that nothing defines."""
    finding = finding._replace(definitions=tuple(Place(name, *_lines(node)) for name, node in parts))
    if any(alias.name == "*" for node in source.imports for alias in node.names):
        return finding._replace(notes=("undefined names: cannot tell, the file has a star import",))
    missing = undefined_names(source.text)
    names = [one for _, node in parts for one in ast.walk(node) if isinstance(one, ast.Name) and one.id in missing]
    first = {one.id: one.lineno for one in sorted(names, key=lambda one: one.lineno, reverse=True)}
    undefined = [Place(name, line, line) for name, line in first.items()]
    return finding._replace(undefined=tuple(sorted(undefined, key=lambda one: one.line)))


def _lines(node: Node) -> tuple[int, int]:
    """The first line, decorators included, and the last."""
    first = min(one.lineno for one in [node, *getattr(node, "decorator_list", [])])
    return first, node.end_lineno or first
