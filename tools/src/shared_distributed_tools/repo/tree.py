# SPDX-License-Identifier: MIT
"""The Python files below a folder: walked once, read when asked for, parsed once.

    tree = Tree(folder)
    for path in tree.files:          # relative to the folder, with forward slashes, sorted
        tree.content(path)           # bytes, or None
        tree.source(path)            # a Source, or None
    tree.unread                      # what could not be looked at, and why; it grows as files are asked for

Only the files used last are kept in memory. Nothing that is read is ever imported or run.
"""

import ast
import codecs
import io
import os
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import NamedTuple

from .files import UnreadableError, read
from .git import Checkout

KEPT = 2**20  # bytes of text whose syntax trees are kept; a tree takes about fifty times its text
_SUFFIXES = (".py", ".pyw")
_NEVER = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "node_modules"}
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_SLOW = frozenset({"punycode", "idna"})  # codings that take minutes for a large file, and that no source has
Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Lambda | ast.ClassDef


class Unread(NamedTuple):
    """A file or folder that was not looked at."""

    path: str
    why: str
    may_hide_a_copy: bool = True


@dataclass(frozen=True, eq=False)
class Source:
    """A Python file that parses."""

    path: str
    text: str
    tree: ast.Module
    encoding: str

    @cached_property
    def lines(self) -> list[str]:
        """The text's lines, stripped; the first has number 1, as Python counts them."""
        lines = io.StringIO(self.text, newline=None).read().split("\n")
        return ["", *map(str.strip, lines)]

    @cached_property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """Every import statement, wherever it stands, by line."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def places(self) -> dict[str, list[ast.AST]]:
        """The nodes that spell each name: read, bind, import or mention it, in a string too (`getattr(x, "name")`)."""
        found: dict[str, list[ast.AST]] = defaultdict(list)
        for node in ast.walk(self.tree):
            for field, value in ast.iter_fields(node):
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, str) and field != "module" and not isinstance(node, ast.keyword):
                        found[one.rpartition(".")[2]].append(node)
        return found

    def binds(self, name: str) -> list[ast.AST]:
        """The nodes that bind a name, in whatever scope and way."""
        spelling = ast.Attribute | ast.Constant
        places = [place for place in self.places[name] if not isinstance(place, spelling)]
        return [place for place in places if not isinstance(getattr(place, "ctx", None), ast.Load)]

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that a node stands in, from the inside out."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def nearest(self, node: ast.AST, kinds: type[ast.AST] | UnionType) -> ast.AST:
        """The innermost node of some kinds that a node stands in; the module where there is none."""
        return next((one for one in self.around(node) if isinstance(one, kinds)), self.tree)


class Tree:
    """The Python files below a folder; or one file, whatever its name.

    Left out are caches, what version control keeps, and installed packages, unless the folder is one of these itself.
    Links are not followed: what they lead to is looked at where it lies, if that is here.

    checkout: says what git tracks, and has the files that a sparse checkout leaves out.
    """

    def __init__(self, root: Path, checkout: Checkout | None = None) -> None:
        self.root = root if root.is_dir() else root.parent
        self._unread: dict[str, Unread] = {}
        self._kept: dict[str, Source | None] = {}
        self._checkout = checkout
        listed = checkout.listed(root) if checkout else {}
        self.absent = {path: id_ for path, (id_, is_absent) in listed.items() if is_absent}  # of whatever kind
        absent = [path for path in self.absent if path.endswith(_SUFFIXES)]
        self.files: list[str] = sorted({*self._walk(), *absent}) if root.is_dir() else [root.name]
        self.tracked = [*listed] if checkout else self.files  # of whatever kind; without git, the Python files

    @property
    def unread(self) -> list[Unread]:
        """What could not be looked at so far."""
        return sorted(self._unread.values())

    def content(self, path: str) -> bytes | None:
        """A file's bytes; None for one that cannot be read."""
        try:
            content = read(self.root / path)
            if content is None and self._checkout and path in self.absent:
                return self._checkout.blob(self.absent[path])
            if content is None:
                self.give_up(path, "cannot be read: it was removed meanwhile")
            return content
        except UnreadableError as error:
            self.give_up(path, error.why)
            return None

    def source(self, path: str) -> Source | None:
        """A file, parsed; None for one that cannot be read or does not parse."""
        if path not in self._kept:
            found = self._parse(path, self.content(path))
            if sum(len(one.text) for one in (*self._kept.values(), found) if one) > KEPT:
                self._kept.clear()
            self._kept[path] = found
        return self._kept[path]

    def give_up(self, path: str, why: str, *, may_hide_a_copy: bool = True) -> None:
        """Count a file or folder among those that could not be looked at."""
        self._unread[path] = Unread(path, why, may_hide_a_copy)

    def _walk(self) -> Iterator[str]:
        is_installed = bool(_INSTALLED & set(self.root.resolve().parts)) or os.path.lexists(self.root / "pyvenv.cfg")
        waiting = [self.root]  # a stack: folders may be nested deeper than calls
        while waiting:
            here = waiting.pop()
            try:
                entries = list(os.scandir(here))
            except OSError as error:
                self.give_up(self._relative(here), f"cannot be read: {error.strerror}")
                continue
            for entry in entries:
                path = here / entry.name
                if entry.is_symlink():
                    # not `Path.is_dir`, which raises for a folder without permission
                    if entry.name.endswith(_SUFFIXES) or os.path.isdir(path):  # noqa: PTH112
                        self.give_up(self._relative(path), "a link, which is not followed", may_hide_a_copy=False)
                elif not entry.is_dir(follow_symlinks=False):
                    if entry.name.endswith(_SUFFIXES):
                        yield self._relative(path)
                elif not is_installed and (entry.name in _INSTALLED or os.path.lexists(path / "pyvenv.cfg")):
                    why = "installed packages; give the folder itself to have it looked at"
                    self.give_up(self._relative(path), why, may_hide_a_copy=False)
                elif entry.name not in _NEVER:
                    waiting.append(path)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _parse(self, path: str, content: bytes | None) -> Source | None:
        if content is None:
            return None
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            if codecs.lookup(encoding).name in _SLOW:
                raise ValueError(f"{encoding} is not a coding for sources")
            text = content.decode(encoding)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about escapes and `is` with literals: not ours to say
                return Source(path, text, ast.parse(text, path), encoding)
        except (RecursionError, MemoryError):
            self.give_up(path, "nested too deeply")
        except (SyntaxError, ValueError, LookupError) as error:  # ValueError: null bytes; LookupError: no such encoding
            self.give_up(path, f"does not parse: {error}")
        return None
