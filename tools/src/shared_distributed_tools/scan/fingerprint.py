# SPDX-License-Identifier: MIT
"""What a definition is recognised by: hashes of its syntax. No source text is kept.

Comments, layout, docstrings, annotations, imports inside a definition and the names of local variables do not count.
What comes from torch and einops counts by its full name, however it was imported. The syntax is written out here and
not by `ast.dump`, whose output changes between versions of Python: a hash made by one is known to the others.

A definition has one hash, and one hash a statement. The first tells whether two definitions run the same code, the
others how much of it they share.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ..errors import ToolError
from ..repo.tree import Function

KNOWN = Path(__file__).with_name("known.json")
_PACKAGES = ("torch", "einops", "functools")  # whose names mean the same in every file; hashes depend on this list
_USUAL = {"F": "torch.nn.functional"}  # what a name is taken for in a file that forgot to import it
_LOCAL = re.compile("\0([^\0]+)\0")
_IGNORED = frozenset({"annotation", "ctx", "kind", "returns", "simple", "type_comment", "type_params"})
Node = Function | ast.ClassDef | ast.Assign


class Known(NamedTuple):
    """What a definition is recognised by, as known.json has it."""

    hash: str
    tells: bool  # it gathers, and is long enough to be no coincidence: the family is recognised by these
    statements: str  # a hash each, with spaces between them


class Definition(NamedTuple):
    """A function, a class or a `name = value` of a file."""

    name: str
    node: Node
    known: Known
    lines: tuple[int, ...]  # of its statements


def definitions(tree: ast.Module) -> list[Definition]:
    """The definitions of a file, those under `if` and the like too. RecursionError where it is nested too deeply."""
    names = imported_names(tree)
    return [_definition(*found, names) for found in _named(tree.body)]


def _named(statements: Iterable[ast.AST]) -> Iterator[tuple[str, Node]]:
    for node in statements:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name, node
            case ast.stmt() | ast.ExceptHandler() | ast.match_case():
                yield from _named(ast.iter_child_nodes(node))


def _definition(name: str, node: Node, names: dict[str, str]) -> Definition:
    names = {**names, **{local: f"\0{local}\0" for local in _locals(node)}}
    lines, heads = zip(*_heads(node, names), strict=True)
    least = 10 if isinstance(node, Function) else 8 if is_autograd_function(node, names) else len(heads) + 1
    known = Known(
        _hash("\n".join(heads)), len(heads) >= least and gathers(node), " ".join(_hash(one)[:8] for one in heads)
    )
    return Definition(name, node, known, lines)


def gathers(node: ast.AST) -> bool:
    """Whether some code names something that gathers."""
    words = (getattr(one, field, "") for one in ast.walk(node) for field in ("id", "attr", "name"))
    return any("gather" in word.lower() for word in words if isinstance(word, str))


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Names of torch and einops in a file -> their full names."""
    names = dict(_USUAL)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: full for name, full in names.items() if full.partition(".")[0] in _PACKAGES}


def is_autograd_function(node: ast.AST, names: dict[str, str]) -> bool:
    """Whether it is a class that derives from torch's autograd Function, by whatever name."""
    return any(_text(base, names).rpartition(".")[2] == "Function" for base in getattr(node, "bases", []))


# ------------------------------------------------------------------ syntax as text


def _heads(node: ast.AST, names: dict[str, str], place: str = "") -> Iterator[tuple[int, str]]:
    """The line and the text of a statement without the blocks below it, then of each statement in these."""
    fields = {field: value for field, value in ast.iter_fields(node) if value and field not in _IGNORED}
    kind = type(node).__name__
    if isinstance(node, ast.AnnAssign):
        kind, fields["targets"] = "Assign", [fields.pop("target")]
    if not place:  # the definition itself, whose own name does not count
        fields.pop("name", None)
        fields.pop("targets", None)
    blocks = [
        field for field in ("body", "orelse", "handlers", "finalbody", "cases") if type(fields.get(field)) is list
    ]
    said = [f"{field}={_text(value, names)}" for field, value in sorted(fields.items()) if field not in blocks]
    line = getattr(node, "lineno", 0) or getattr(getattr(node, "pattern", None), "lineno", 0)
    yield line, " ".join([place, kind, *said])
    for field in blocks:
        for child in fields[field]:
            if not _says_nothing(child):
                yield from _heads(child, names, f"{place}/{field}")


def _locals(node: ast.AST) -> set[str]:
    functions = [one for one in ast.walk(node) if isinstance(one, Function)]
    inside = [one for function in functions for one in ast.walk(function)]
    stored = {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    declared = {name for one in inside if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names}
    return stored - declared - {one.arg for one in inside if isinstance(one, ast.arg)}


def _says_nothing(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_bare_annotation = isinstance(node, ast.AnnAssign) and node.value is None
    return is_text or is_bare_annotation or isinstance(node, ast.Pass | ast.Import | ast.ImportFrom)


def _text(value: object, names: dict[str, str]) -> str:
    match value:
        case ast.Name(id=name):
            return names.get(name, name)
        case ast.Attribute(value=whole, attr=name):
            return f"{_text(whole, names)}.{name}"
        case ast.Constant(value=one):  # not by repr: that of a large int is refused
            return f"{type(one).__name__}:{hex(one) if type(one) is int else ascii(one)}"
        case ast.JoinedStr(values=parts):  # versions of Python cut the plain text between its fields differently
            plain = (str(one.value) if isinstance(one, ast.Constant) else _text(one, names) for one in parts)
            return f"JoinedStr({''.join(plain)})"
        case list():
            return f"[{','.join(_text(one, names) for one in value)}]"
        case ast.AST():
            fields = [(field, one) for field, one in ast.iter_fields(value) if one and field not in _IGNORED]
            return f"{type(value).__name__}({' '.join(f'{field}={_text(one, names)}' for field, one in fields)})"
    return ascii(value)


def _hash(text: str) -> str:
    """A hash in which local names are numbers, in the order in which they appear."""
    numbers: dict[str, int] = {}
    numbered = _LOCAL.sub(lambda found: f"v{numbers.setdefault(found[1], len(numbers))}", text)
    return sha256(numbered.encode("ascii", "backslashreplace")).hexdigest()[:16]


# ------------------------------------------------------------------ known files


def record(text: str) -> dict[str, Known]:
    """What a file is recognised by. ToolError where nothing in it could be, SyntaxError where it does not parse."""
    every = definitions(ast.parse(text))
    found = {one.name: one.known for one in every if not isinstance(one.node, ast.Assign) or gathers(one.node)}
    if not any(one.tells for one in found.values()):
        raise ToolError("no autograd Function in it gathers, and no function of some length; scan would never find it")
    return found


@cache
def known_originals() -> dict[str, dict[str, Known]]:
    """The files that this release knows: the definitions of each, by the adapter that replaces it."""
    known = json.loads(KNOWN.read_text(encoding="utf-8")).items()
    return {adapter: {name: Known(*facts) for name, facts in found.items()} for adapter, found in known}


def with_original(adapter: str, file: Path) -> str:
    """The text of known.json with one more original in it, or with a newer form of one that is in it already."""
    try:
        known = {**known_originals(), adapter: record(file.read_text(encoding="utf-8"))}
    except (SyntaxError, ValueError) as error:
        msg = f"{file} does not parse: {error}"
        raise ToolError(msg) from error
    return json.dumps(dict(sorted(known.items())), indent=1) + "\n"
