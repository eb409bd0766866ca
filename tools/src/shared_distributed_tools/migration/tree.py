# SPDX-License-Identifier: MIT
"""The Python files of a repo, parsed: what every look at call sites starts from."""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..paths import files_of
from .walk import LARGEST


@dataclass(frozen=True, eq=False)
class Source:
    """A Python file that parses."""

    path: str
    text: str
    tree: ast.Module

    @cached_property
    def lines(self) -> list[str]:
        """The text's lines, counted as Python counts them."""
        return io.StringIO(self.text, newline=None).read().split("\n")

    @cached_property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """Every import statement, wherever it stands."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, from the inside out."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def line(self, number: int) -> str:
        """One line, stripped."""
        return self.lines[number - 1].strip()


class SourceTree:
    """The Python files below a folder, parsed when they are asked for."""

    def __init__(self, root: Path) -> None:
        self.contents: dict[str, bytes] = {}
        self._parsed: dict[str, Source | str] = {}
        for file in files_of(root):
            if not file.name.endswith(".py"):
                continue
            path = file.relative_to(root).as_posix()
            try:
                self.contents[path] = file.read_bytes()
            except OSError as error:
                self.contents[path] = b""
                self._parsed[path] = f"cannot be read: {error.strerror}"

    def give_up(self, path: str, why: str) -> None:
        """Count a file among the broken ones after all."""
        self._parsed[path] = why

    def changed(self, contents: dict[str, bytes | None]) -> "SourceTree":
        """The tree as it would be with some files changed, or gone."""
        other = object.__new__(SourceTree)
        merged = {**self.contents, **{path: new for path, new in contents.items() if path in self.contents}}
        other.contents = {path: content for path, content in merged.items() if content is not None}
        other._parsed = {path: parsed for path, parsed in self._parsed.items() if path not in contents}
        return other

    def source(self, path: str) -> Source | None:
        """One file; None where it does not parse."""
        parsed = self._parse(path)
        return parsed if isinstance(parsed, Source) else None

    def broken(self) -> dict[str, str]:
        """The files that do not parse, and why."""
        parsed = {path: self._parse(path) for path in self.contents}
        return {path: why for path, why in parsed.items() if isinstance(why, str)}

    def _parse(self, path: str) -> Source | str:
        if path not in self._parsed:
            try:
                self._parsed[path] = _parsed(path, self.contents[path])
            except SyntaxError as error:
                self._parsed[path] = f"line {error.lineno}: {error.msg}"
            except (ValueError, RecursionError, MemoryError) as error:  # null bytes, nested too deeply
                self._parsed[path] = str(error) or type(error).__name__
        return self._parsed[path]


def _parsed(path: str, content: bytes) -> Source:
    """A file's source. SyntaxError, ValueError, RecursionError or MemoryError where it does not parse."""
    if len(content) > LARGEST:
        msg = f"larger than {LARGEST // 2**20} MiB"
        raise ValueError(msg)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes and `is` with literals: not ours to say
        tree = ast.parse(content)
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return Source(path, content.decode(encoding), tree)
