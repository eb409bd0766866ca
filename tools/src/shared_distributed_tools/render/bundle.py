# SPDX-License-Identifier: MIT
"""The heart of the core and one adapter, as one plain module.

Top-level statements are taken whole, as they stand in their source, or left out: what the adapter does not reach is
not there. Imports between the sources go, since all their names are at hand; so a name that the package imports from
elsewhere in the package means the heart's here.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise

from ..catalog import CORE
from ..errors import ToolError
from .verify import verify

HEART = ("_errors", "_agree", "_ranks", "_gradient", "adapters")  # in the order in which a call runs
_INTRODUCTION = '''\
"""A differentiable all-gather for tensors whose size along one dim differs from rank to rank (torch 2.0 and later).

Under torch.compile it is a graph break; the package {distribution} compiles whole, and has more.
"""'''


@dataclass(frozen=True)
class _Statement:
    """A top-level statement: its text with the comment lines right above it, what it binds and what it names."""

    text: str
    first: int  # its lines in the source
    last: int
    binds: frozenset[str]
    names: frozenset[str]


@lru_cache(maxsize=16)  # several files of one repo are checked in a run
def bundle(core: tuple[tuple[str, str], ...], adapter: str, licence: str, distribution: str) -> str:
    """The body of the vendored file, from the sources of the core's modules and of the adapter."""
    texts = [*(dict(core)[name] for name in HEART), adapter]
    modules = [_statements(text) for text in texts]
    imports = {bound: (module, name) for text in texts for bound, module, name in _imports(text)}
    modules[-2] = _without(_replaced(modules), modules[-2])
    homes: dict[str, _Statement] = {}
    for statement in chain(*modules):
        twice = statement.binds & homes.keys()
        if twice:
            msg = f"{', '.join(sorted(twice))} would be defined twice in the vendored file"
            raise ToolError(msg)
        homes.update(dict.fromkeys(statement.binds, statement))
    taken = [bound for bound, (module, _) in imports.items() if module.partition(".")[0] == CORE]
    unknown = [name for name in taken if name not in homes]
    if unknown:
        msg = f"the adapter imports {', '.join(unknown)}, which no module of a vendored file defines"
        raise ToolError(msg)

    kept: set[_Statement] = set()
    todo = [*modules[-1], *(homes[name] for name in taken)]
    while todo:
        statement = todo.pop()
        if statement not in kept:
            kept.add(statement)
            todo += [homes[name] for name in statement.names if name in homes]

    needed = {imports[name] for one in kept for name in one.names if name in imports and name not in homes}
    parts = [[one for one in statements if one in kept] for statements in modules]
    sections = [*(_joined(part) for part in parts if part), _as_comment(licence)]
    top = f"{_INTRODUCTION.format(distribution=distribution)}\n\n{_import_block(needed)}"
    text = "\n\n".join([top, *sections]) + "\n"
    verify(text)
    return text


def _statements(text: str) -> list[_Statement]:
    """The module's statements, without its docstring, its imports and `__all__`."""
    lines, found = text.splitlines(), []
    for node in ast.parse(text).body:
        binds = _bound(node)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom) or "__all__" in binds:
            continue
        first = min([node.lineno, *[decorator.lineno for decorator in getattr(node, "decorator_list", [])]])
        while lines[first - 2].startswith("#"):
            first -= 1
        names = frozenset(name.id for name in ast.walk(node) if isinstance(name, ast.Name))
        last = node.end_lineno or first
        found.append(_Statement("\n".join(lines[first - 1 : last]), first, last, binds, names))
    return found


def _replaced(modules: list[list[_Statement]]) -> set[str]:
    """Public names that the adapter defines in another way than `adapters.py`, where nothing shared names them."""
    *shared, adapter = modules
    own = {name for statement in adapter for name in statement.binds}
    named = {name for statement in chain(*shared) for name in statement.names}
    return {name for name in own - named if not name.startswith("_")}


def _without(names: set[str], statements: list[_Statement]) -> list[_Statement]:
    return [statement for statement in statements if not statement.binds & names]


def _bound(node: ast.stmt) -> frozenset[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return frozenset({node.name})
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _imports(text: str) -> Iterator[tuple[str, str, str]]:
    """Names that come from other packages: the name, and the module and what of it, or `module as name` and nothing."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            yield from ((a.asname or a.name.partition(".")[0], ast.unparse(a), "") for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((a.asname or a.name, node.module, ast.unparse(a)) for a in node.names)


def _import_block(needed: set[tuple[str, str]]) -> str:
    """Sorted as the linter sorts them: the standard library, then torch; `import` before `from`."""
    blocks = []
    for standard in (True, False):
        ours = [one for one in needed if (re.split("[. ]", one[0])[0] in sys.stdlib_module_names) == standard]
        lines = sorted(f"import {module}" for module, name in ours if not name)
        for module in sorted({module for module, name in ours if name}):
            names = sorted(name for one, name in ours if name and one == module)
            lines.append(f"from {module} import {', '.join(names)}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _joined(statements: list[_Statement]) -> str:
    """A blank line apart, as in the originals, but for statements on neighbouring lines."""
    text = statements[0].text
    for before, statement in pairwise(statements):
        text += ("\n" if statement.first == before.last + 1 else "\n\n") + statement.text
    return text


def _as_comment(licence: str) -> str:
    """The licence as comment lines of full width."""
    title, holder, terms = licence.strip().split("\n\n", 2)
    return textwrap.indent(f"{title}. {holder}\n{textwrap.fill(terms, 118)}", "# ")
