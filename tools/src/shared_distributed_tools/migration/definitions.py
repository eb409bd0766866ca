# SPDX-License-Identifier: MIT
"""A Python file as text, as a tree, and as its definitions. What does not parse is taken apart piece by piece."""

import ast
import io
import re
import tokenize
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from .normal import Normal, is_autograd_function, normalise, qualified
from .scopes import FunctionNode, Scopes

# no definition of the family can do without one of these words; see `Definition.gathers`
_WORDS = re.compile(r"gather|distributed|\bdist\b", re.IGNORECASE)
_OPENS_A_PIECE = re.compile(r"[^\s#)\]}'\"]")
_MOST_PIECES = 4000  # of a file that does not parse
_LONGEST_PIECE = 12  # lines at the left margin that may belong together: decorators, `else`, a text, brackets
_PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


class NotTextError(Exception):
    """A file that is no Python text."""


def decode(content: bytes) -> tuple[str, str]:
    """A file's text by Python's own rules, and what was wrong with it. NotTextError for binary files."""
    if b"\0" in content:
        raise NotTextError("binary: holds null bytes")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding), ""
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        reason = "not in the encoding that it says or implies" if isinstance(error, UnicodeDecodeError) else str(error)
        return content.decode("utf-8", "replace"), reason


def may_hold_the_family(text: str) -> bool:
    """Whether a text has a word that every definition of the family has. Cheap, and never wrong about a no."""
    # Python reads identifiers in their compatibility form: `ｄｉｓｔ` is `dist`
    return _WORDS.search(text if text.isascii() else unicodedata.normalize("NFKC", text)) is not None


@dataclass(eq=False)
class Definition:
    """A function, a class or a `name = value` of a file; those inside classes and functions too."""

    name: str  # with what it stands in: `Tools.gather`
    node: FunctionNode | ast.ClassDef | ast.Assign
    scopes: Scopes = field(repr=False)
    parent: "Definition | None" = None

    @cached_property
    def kind(self) -> str:
        """What it is: "function", "class", "autograd function" (a class too) or "assignment"."""
        if isinstance(self.node, ast.ClassDef):
            return "autograd function" if is_autograd_function(self.node, self.scopes) else "class"
        return "assignment" if isinstance(self.node, ast.Assign) else "function"

    @property
    def own_name(self) -> str:
        """Its name alone."""
        return self.name.rpartition(".")[2]

    @property
    def first_line(self) -> int:
        """Where it begins, decorators included."""
        decorators = [] if isinstance(self.node, ast.Assign) else self.node.decorator_list
        return min([self.node.lineno, *(decorator.lineno for decorator in decorators)])

    @property
    def last_line(self) -> int:
        """Where it ends."""
        return self.node.end_lineno or self.node.lineno

    @cached_property
    def normal(self) -> Normal:
        """Its normal form. RecursionError where it is nested too deeply."""
        return normalise(self.node, self.scopes)

    @property
    def size(self) -> int:
        """How many statements it has."""
        return sum(isinstance(node, ast.stmt) for node in ast.walk(self.node))

    @cached_property
    def gathers(self) -> bool:
        """Whether it has to do with gathering: names something so, or uses `torch.distributed`."""
        return any(_speaks_of_gathering(node, self.scopes) for node in ast.walk(self.node))

    def is_inside(self, other: "Definition") -> bool:
        """Whether it is another definition or stands in it."""
        parent: Definition | None = self
        while parent is not None and parent is not other:
            parent = parent.parent
        return parent is other


def _speaks_of_gathering(node: ast.AST, scopes: Scopes) -> bool:
    if isinstance(node, ast.Name):
        return "gather" in node.id.lower() or (qualified(node, scopes) or "").startswith("torch.distributed")
    if isinstance(node, ast.Attribute):
        return "gather" in node.attr.lower() or node.attr == "distributed"
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and "gather" in node.name.lower()


@dataclass
class Parsed:
    """A file's tree and definitions; `problem` says why some of it is missing."""

    tree: ast.Module
    scopes: Scopes
    definitions: list[Definition]  # outer ones before those inside them
    problem: str = ""

    @property
    def size(self) -> int:
        """How many statements the file has, imports aside."""
        imports = (ast.Import, ast.ImportFrom)
        return sum(isinstance(node, ast.stmt) and not isinstance(node, imports) for node in ast.walk(self.tree))


def parse(text: str) -> Parsed:
    """A file's definitions: all of them, or those that can be read where the whole does not parse."""
    try:
        return _taken_apart(_tree(text))
    except _PARSE_ERRORS as error:
        problem = _describe(error)
    found: list[ast.stmt] = []
    lost = 0
    for piece in _pieces(text):
        if piece is None:
            lost += 1
        else:
            found += piece
    problem += f"; read piece by piece, without {lost} that cannot be read" if lost else "; read piece by piece"
    parsed = _taken_apart(ast.Module(found, []))
    parsed.problem = problem
    return parsed


def _tree(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes and `is` with literals: not ours to say
        return ast.parse(text)


def _describe(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"does not parse: {error.msg}" + (f" (line {error.lineno})" if error.lineno else "")
    if isinstance(error, RecursionError | MemoryError):
        return "nested too deeply to be read whole"
    return f"does not parse: {error}"


def _pieces(text: str) -> Iterator[list[ast.stmt] | None]:
    """The statements of a text that does not parse, one at the left margin after the other; None for a lost one."""
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if _OPENS_A_PIECE.match(line)]
    begin = tries = 0
    while begin < len(starts) and tries < _MOST_PIECES:
        for end in range(begin + 1, min(begin + 1 + _LONGEST_PIECE, len(starts) + 1)):
            tries += 1
            stop = starts[end] if end < len(starts) else len(lines)
            body = _statements("".join(lines[starts[begin] : stop]), starts[begin])
            if body is not None:
                yield body
                begin = end
                break
        else:
            yield None
            begin += 1
    if begin < len(starts):
        yield None


def _statements(text: str, offset: int) -> list[ast.stmt] | None:
    try:
        tree = _tree(text)
        Scopes(tree)
    except _PARSE_ERRORS:
        return None
    ast.increment_lineno(tree, offset)
    return tree.body


def _taken_apart(tree: ast.Module) -> Parsed:
    scopes = Scopes(tree)
    return Parsed(tree, scopes, list(_definitions(tree.body, scopes, None)))


def _definitions(statements: Iterable[ast.AST], scopes: Scopes, parent: Definition | None) -> Iterator[Definition]:
    prefix = f"{parent.name}." if parent else ""
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found = Definition(prefix + node.name, node, scopes, parent)
            yield found
            yield from _definitions(node.body, scopes, found)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            if parent is None:
                yield Definition(node.targets[0].id, node, scopes)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):  # `if`, `try` and the like
            yield from _definitions(ast.iter_child_nodes(node), scopes, parent)
