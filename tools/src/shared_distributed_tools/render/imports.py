# SPDX-License-Identifier: MIT
"""Imports of a bundled file: from torch, einops and the standard library, merged, in isort's order."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst
from libcst import helpers

from ..errors import RenderError

LINE_LENGTH = 120


@dataclass(frozen=True)
class Import:
    """`import module [as alias]`, or `from module import name [as alias]`."""

    module: str
    name: str | None = None
    alias: str | None = None

    @property
    def bound(self) -> str:
        """The name that it makes."""
        return self.alias or self.name or self.module.split(".")[0]

    @property
    def code(self) -> str:
        """As a statement of its own."""
        renamed = f" as {self.alias}" if self.alias else ""
        return f"from {self.module} import {self.name}{renamed}" if self.name else f"import {self.module}{renamed}"

    @classmethod
    def read(cls, where: str, node: cst.CSTNode) -> Iterator["Import"]:
        """Every name of an import statement. RenderError for `*`, relative and `__future__` imports."""
        if not isinstance(node, cst.Import | cst.ImportFrom):
            return
        if isinstance(node, cst.Import):
            yield from (cls(alias.evaluated_name, None, alias.evaluated_alias) for alias in node.names)
            return
        module = helpers.get_full_name_for_node(node.module) if node.module else None
        if module is None or node.relative or isinstance(node.names, cst.ImportStar) or module == "__future__":
            msg = f"{where}: cannot bundle `{cst.Module([]).code_for_node(node)}`"
            raise RenderError(msg)
        yield from (cls(module, alias.evaluated_name, alias.evaluated_alias) for alias in node.names)


def merged(imports: Iterable[Import]) -> list[cst.SimpleStatementLine]:
    """Statements for all imports: the standard library, a blank line, the others."""
    by_section: dict[bool, set[Import]] = {True: set(), False: set()}
    for one in imports:
        by_section[one.module.split(".")[0] in sys.stdlib_module_names].add(one)
    sections = [[cst.parse_statement(code) for code in _section(group)] for group in by_section.values() if group]
    statements = []
    for section in sections:
        for index, statement in enumerate(section):
            assert isinstance(statement, cst.SimpleStatementLine)
            statements.append(statement.with_changes(leading_lines=[] if index else [cst.EmptyLine(indent=False)]))
    return statements


def _section(imports: set[Import]) -> list[str]:
    plain = sorted((one for one in imports if one.name is None), key=lambda one: (one.module, one.alias or ""))
    named = [one for one in imports if one.name is not None]
    lines = [one.code for one in plain]
    for module in sorted({one.module for one in named}, key=lambda module: (module.lower(), module)):
        members = sorted((one for one in named if one.module == module), key=_member_order)
        unaliased = [str(one.name) for one in members if one.alias is None]
        if unaliased:
            line = f"from {module} import {', '.join(unaliased)}"
            wrapped = f"from {module} import (\n" + "".join(f"    {name},\n" for name in unaliased) + ")"
            lines.append(line if len(line) <= LINE_LENGTH else wrapped)
        lines.extend(one.code for one in members if one.alias is not None)
    return lines


def _member_order(one: Import) -> tuple[int, str, str, str]:
    """The order that isort gives to members: CONSTANTS, Classes, then the rest."""
    name = one.name or ""
    kind = 0 if len(name) > 1 and name.isupper() else 1 if name[:1].isupper() else 2
    return kind, name.lower(), name, one.alias or ""
