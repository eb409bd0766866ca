# SPDX-License-Identifier: MIT
"""The normal form of a definition: what stays when comments, docstrings, formatting and local names go.

Two definitions with one normal form run the same code. The dump is written out here and not left to `ast.dump`,
whose output changes between versions of Python: a hash made by one version has to be known to the others.

- Annotations go, and so do imports inside a definition.
- Local names become numbers, in the order in which they appear. Parameters become their places; their names
  are compared as the signature.
- What comes from torch and its company becomes its full name, however it was imported: `dist.get_rank` and
  `torch.distributed.get_rank` are the same.
- Any other name from outside becomes a number too, and is listed under `uses`: a helper may have been renamed.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from typing import NamedTuple

from .scopes import FunctionNode, Scope, Scopes

# packages whose names mean the same everywhere; a fixed list, since hashes depend on it
_KNOWN_PACKAGES = frozenset(
    {"collections", "contextlib", "einops", "functools", "itertools", "math", "numpy", "operator", "torch", "typing"}
)
# what a name is taken for where the file forgot to import it, as the originals did
_CONVENTIONS = {
    "F": "torch.nn.functional",
    "Function": "torch.autograd.Function",
    "dist": "torch.distributed",
    "distributed": "torch.distributed",
    "nn": "torch.nn",
    "rearrange": "einops.rearrange",
    "torch": "torch",
}
_SKIPPED_FIELDS = frozenset({"annotation", "ctx", "kind", "returns", "simple", "type_comment", "type_params"})
_ALIAS_DEPTH = 5


class Local(NamedTuple):
    """A name that belongs to a function inside a definition. `label` is a parameter's place."""

    scope: int
    name: str
    label: str | None


class Outside(NamedTuple):
    """A name from outside a definition."""

    name: str


Token = str | Local | Outside


class Statement(NamedTuple):
    """One statement, without the block below it: a hash with numbering of its own, and its line."""

    hash: str
    line: int


@dataclass(frozen=True)
class Normal:
    """A definition's normal form."""

    hash: str
    statements: tuple[Statement, ...]
    signature: dict[str, list[str]]  # a function's under ""; a class's by method
    uses: tuple[str, ...]  # names from outside, in order of appearance


def qualified(node: ast.AST, scopes: Scopes, depth: int = 0) -> str | None:
    """The full name that a name or a chain of attributes stands for, if it is one of torch and its company."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    owner = scopes.place[node].find(node.id) if node in scopes.place else None
    root: str | None
    if owner is None:
        root = _CONVENTIONS.get(node.id)
    elif node.id in owner.imports:
        root = owner.imports[node.id]
    else:  # `dist = torch.distributed`, said once
        values = owner.assigned.get(node.id, [])
        value = values[0] if len(values) == 1 and owner.kind == "module" else None
        root = qualified(value, scopes, depth + 1) if value is not None and depth < _ALIAS_DEPTH else None
    if root is None or root.partition(".")[0] not in _KNOWN_PACKAGES:
        return None
    return ".".join((root, *reversed(attributes)))


def is_autograd_function(node: ast.ClassDef, scopes: Scopes) -> bool:
    """Whether a class derives from torch's autograd Function, by whatever name."""
    return any(_last_name(base, scopes) == "Function" for base in node.bases)


def _last_name(node: ast.expr, scopes: Scopes) -> str:
    known = qualified(node, scopes)
    if known is not None:
        return known.rpartition(".")[2]
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def normalise(node: FunctionNode | ast.ClassDef | ast.Assign, scopes: Scopes) -> Normal:
    """The normal form of a function, a class, or the value of an assignment."""
    dump = _Dump(node, scopes)
    numbered, uses = _whole(dump.tokens)
    statements = tuple(
        Statement(_hash(_alone(dump.tokens[start:stop]), 8), line) for line, start, stop in dump.segments
    )
    return Normal(_hash(numbered, 16), statements, _signatures(node, scopes), uses)


class _Dump:
    """A definition as a flat list of tokens, and which of them make up each statement."""

    def __init__(self, node: FunctionNode | ast.ClassDef | ast.Assign, scopes: Scopes) -> None:
        self.tokens: list[Token] = []
        self.segments: list[tuple[int, int, int]] = []  # line, start, stop
        self._scopes = scopes
        self._node = node
        self._own = scopes.opened.get(node)
        if isinstance(node, ast.Assign):
            self._segment(node.lineno, [type(node).__name__], [node.value])
        elif isinstance(node, ast.ClassDef):
            self._segment(node.lineno, ["ClassDef"], [*node.decorator_list, *node.bases, *node.keywords])
            self._block("body", node.body)
        else:  # the parameters are the signature
            if node.decorator_list:
                self._segment(node.lineno, [type(node).__name__], node.decorator_list)
            self._block("body", node.body)

    def _segment(self, line: int, tokens: Iterable[Token], nodes: Iterable[ast.AST]) -> None:
        start = len(self.tokens)
        self.tokens += tokens
        for node in nodes:
            self._expression(node)
        self.segments.append((line, start, len(self.tokens)))

    def _block(self, name: str, statements: Iterable[ast.AST]) -> None:
        self.tokens.append(name + "{")
        for statement in statements:
            if not _says_nothing(statement):
                self._statement(statement)
        self.tokens.append("}")

    def _statement(self, node: ast.AST) -> None:
        """A statement, an `except` or a `case`: its head as one segment, then the blocks below it."""
        line = getattr(node, "lineno", 0) or getattr(getattr(node, "pattern", None), "lineno", 0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and self._is_method(node):
            self._segment(line, [type(node).__name__, node.name], node.decorator_list)
            self._block("body", node.body)
            return
        start = len(self.tokens)
        self.tokens.append("Assign" if isinstance(node, ast.AnnAssign) else type(node).__name__)
        blocks: list[tuple[str, list[ast.AST]]] = []
        for field, value in ast.iter_fields(node):
            if (
                isinstance(value, list)
                and value
                and isinstance(value[0], ast.stmt | ast.ExceptHandler | ast.match_case)
            ):
                blocks.append((field, value))
            elif isinstance(node, ast.AnnAssign) and field == "target":
                self._field("targets", [value])
            else:
                self._field(field, value, node)
        self.segments.append((line, start, len(self.tokens)))
        for field, statements in blocks:
            self._block(field, statements)

    def _is_method(self, node: ast.AST) -> bool:
        return isinstance(self._node, ast.ClassDef) and self._scopes.place[node] is self._own

    def _field(self, field: str, value: object, owner: ast.AST | None = None) -> None:
        if field in _SKIPPED_FIELDS or value is None or value == []:
            return
        self.tokens.append(field + "=")
        if isinstance(value, list):
            self.tokens.append("[")
            for item in value:
                self._value(item, owner)
            self.tokens.append("]")
        else:
            self._value(value, owner, is_name=field in ("name", "rest"))

    def _value(self, value: object, owner: ast.AST | None, *, is_name: bool = False) -> None:
        if isinstance(value, ast.AST):
            self._expression(value)
        elif owner in self._scopes.place and isinstance(value, str) and (is_name or _declares(owner)):
            self.tokens.append(self._name(value, self._scopes.place[owner]))
        else:
            self.tokens.append(ascii(value))

    def _expression(self, node: ast.AST) -> None:
        known = qualified(node, self._scopes) if isinstance(node, ast.Name | ast.Attribute) else None
        if known is not None:
            self.tokens.append(f"={known}")
        elif isinstance(node, ast.Name):
            self.tokens.append(self._name(node.id, self._scopes.place[node]))
        elif isinstance(node, ast.Constant):
            self.tokens.append(_constant(node.value))
        elif isinstance(node, ast.JoinedStr):
            self._joined(node)
        elif isinstance(node, ast.arguments):
            self._arguments(node)
        elif isinstance(node, ast.operator | ast.unaryop | ast.cmpop | ast.boolop):
            self.tokens.append(type(node).__name__)
        else:
            self.tokens.append(f"({type(node).__name__}")
            for field, value in ast.iter_fields(node):
                self._field(field, value, node)
            self.tokens.append(")")

    def _name(self, name: str, place: Scope) -> Token:
        owner = place.find(name)
        if owner is None or self._own is None or not owner.is_within(self._own) or name in owner.imports:
            return Outside(name)
        if owner.kind == "class":
            return f".{name}"  # an attribute to everybody else: its name counts
        return Local(id(owner), name, owner.parameters.get(name))

    def _arguments(self, node: ast.arguments) -> None:
        """Of a function inside the definition: how many of each kind, and the defaults."""
        rest = (node.vararg, node.kwarg)
        kinds = (node.posonlyargs, node.args, node.kwonlyargs, *([one] if one else [] for one in rest))
        self.tokens += ["(arguments", *(str(len(kind)) for kind in kinds)]
        for default in (*node.defaults, *node.kw_defaults):
            self._expression(default) if default is not None else self.tokens.append("-")
        self.tokens.append(")")

    def _joined(self, node: ast.JoinedStr) -> None:
        """An f-string; how its plain parts are cut into pieces differs between versions of Python."""
        self.tokens.append("(JoinedStr")
        for is_plain, parts in groupby(node.values, key=lambda part: isinstance(part, ast.Constant)):
            if is_plain:
                text = "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
                self.tokens += [_constant(text)] if text else []
            else:
                for part in parts:
                    self._expression(part)
        self.tokens.append(")")


def _says_nothing(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_bare_annotation = isinstance(node, ast.AnnAssign) and node.value is None
    return is_text or is_bare_annotation or isinstance(node, ast.Pass | ast.Import | ast.ImportFrom)


def _declares(owner: ast.AST | None) -> bool:
    return isinstance(owner, ast.Global | ast.Nonlocal)


def _constant(value: object) -> str:
    # not repr: that of a text depends on the Unicode tables, that of a large int is refused
    return f"{type(value).__name__}:{hex(value) if type(value) is int else ascii(value)}"


def _whole(tokens: Iterable[Token]) -> tuple[list[str], tuple[str, ...]]:
    """Tokens with names numbered over the whole definition, and the names from outside."""
    functions: dict[int, int] = {}
    variables: dict[Local, int] = {}
    outside: dict[str, int] = {}
    numbered = []
    for token in tokens:
        if isinstance(token, Outside):
            numbered.append(f"o{outside.setdefault(token.name, len(outside))}")
        elif isinstance(token, Local) and token.label is not None:
            numbered.append(f"p{functions.setdefault(token.scope, len(functions))}.{token.label}")
        elif isinstance(token, Local):
            numbered.append(f"v{variables.setdefault(token, len(variables))}")
        else:
            numbered.append(token)
    return numbered, tuple(outside)


def _alone(tokens: Iterable[Token]) -> list[str]:
    """Tokens of one statement, numbered from the start, so that what stands around it does not matter."""
    local: dict[Local, int] = {}
    outside: dict[Outside, int] = {}
    numbered = []
    for token in tokens:
        if isinstance(token, Outside):
            numbered.append(f"o{outside.setdefault(token, len(outside))}")
        elif isinstance(token, Local):
            numbered.append(f"v{local.setdefault(token, len(local))}")
        else:
            numbered.append(token)
    return numbered


def _hash(tokens: Iterable[str], digits: int) -> str:
    return sha256("\n".join(tokens).encode("ascii", "backslashreplace")).hexdigest()[:digits]


def _signatures(node: FunctionNode | ast.ClassDef | ast.Assign, scopes: Scopes) -> dict[str, list[str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return {"": _signature(node, scopes)}
    if isinstance(node, ast.Assign):
        return {}
    by_place = is_autograd_function(node, scopes)  # torch calls these by place: their parameters' names are free
    return {
        method.name: _signature(method, scopes, is_method=True, by_place=by_place)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _signature(node: FunctionNode, scopes: Scopes, *, is_method: bool = False, by_place: bool = False) -> list[str]:
    """Parameters one by one: `t`, `dim=` and the hash of its default, `*`, `*rest`, `**options`, `/`."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    gap = len(positional) - len(arguments.defaults)
    defaults = [None] * gap + list(arguments.defaults)
    found = []
    for index, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        found.append(_parameter("_" if by_place else argument.arg, default, scopes))
        if index + 1 == len(arguments.posonlyargs):
            found.append("/")
    if is_method and not by_place:
        found = found[1:]  # self
    if arguments.vararg or arguments.kwonlyargs:
        found.append(f"*{arguments.vararg.arg}" if arguments.vararg else "*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(_parameter(argument.arg, default, scopes))
    return [*found, f"**{arguments.kwarg.arg}"] if arguments.kwarg else found


def _parameter(name: str, default: ast.expr | None, scopes: Scopes) -> str:
    if default is None:
        return name
    tokens = _Dump(ast.Assign([], default, lineno=0), scopes).tokens
    return f"{name}={_hash(_alone(tokens), 8)}"
