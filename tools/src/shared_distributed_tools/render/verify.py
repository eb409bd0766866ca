# SPDX-License-Identifier: MIT
"""The last look at a rendered file, by Python's own compiler and not by what made it."""

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator

from ..errors import ToolError

ALLOWED = frozenset({"torch", "einops"})
_MODULE_NAMES = frozenset({"__name__", "__file__", "__doc__"})


def verify(text: str) -> None:
    """ToolError for an undefined name, or an import that may be missing."""
    missing = undefined_names(text)
    if missing:
        msg = f"the rendered file would use undefined names: {', '.join(sorted(missing))}"
        raise ToolError(msg)
    for node in ast.walk(ast.parse(text)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        unknown = [one for one in modules if one.partition(".")[0] not in ALLOWED | sys.stdlib_module_names]
        if unknown:
            msg = f"the rendered file would import {unknown[0]}; allowed are torch, einops and the standard library"
            raise ToolError(msg)


def undefined_names(text: str) -> set[str]:
    """Names that a module reads and nobody defines. SyntaxError where it is no Python."""
    top = symtable.symtable(text, "module", "exec")
    known = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    known |= set(dir(builtins)) | _MODULE_NAMES
    return {
        symbol.get_name()
        for table in _tables(top)
        for symbol in table.get_symbols()
        # not `is_global()`: Python 3.11 takes any scope called "top" for the module's
        if symbol.is_referenced() and not (symbol.is_local() or symbol.is_free()) and symbol.get_name() not in known
    }


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)
