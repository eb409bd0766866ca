# SPDX-License-Identifier: MIT
"""The last look at a rendered file, by Python's own compiler and not by what made it."""

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator

from ..errors import RenderError

ALLOWED = frozenset({"torch", "einops"})
_MODULE_NAMES = frozenset({"__name__", "__file__", "__doc__"})


def verify(text: str) -> None:
    """RenderError for an undefined name, an export that is not there, or an import that may be missing."""
    missing = undefined_names(text)
    if missing:
        msg = f"the rendered file would use undefined names: {', '.join(sorted(missing))}"
        raise RenderError(msg)
    tree = ast.parse(text)
    unknown = _exported(tree) - _defined(symtable.symtable(text, "rendered", "exec"))
    if unknown:
        msg = f"__all__ names what the rendered file does not define: {', '.join(sorted(unknown))}"
        raise RenderError(msg)
    for module in _imported(tree):
        package = module.partition(".")[0]
        if package not in ALLOWED and package not in sys.stdlib_module_names:
            msg = f"the rendered file would import {module}; it may import torch, einops and the standard library only"
            raise RenderError(msg)


def _defined(top: symtable.SymbolTable) -> set[str]:
    return {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def undefined_names(text: str) -> set[str]:
    """Names that a module reads and nobody defines. SyntaxError where it is no Python."""
    top = symtable.symtable(text, "module", "exec")
    known = _defined(top) | set(dir(builtins)) | _MODULE_NAMES
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


def _exported(tree: ast.Module) -> set[str]:
    exports: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            exports |= set(ast.literal_eval(node.value))
    return exports


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
