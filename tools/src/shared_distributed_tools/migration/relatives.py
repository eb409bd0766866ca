# SPDX-License-Identifier: MIT
"""Relatives: differentiable ragged gathers that resemble no known variant, told by what they do.

An autograd Function whose forward gathers twice (the sizes, then the rows), takes the largest size and makes room
up to it, and whose backward cuts its own part out. Helpers in the same file count as part of it.
"""

import ast
import re
from collections.abc import Iterator

from .definitions import Definition, Parsed
from .scopes import FunctionNode

_GATHER = re.compile(r"_?all_?gather", re.IGNORECASE)
_LARGEST = frozenset({"max", "amax", "maximum", "MAX"})
_ROOM = re.compile(r"pad|zeros|new_empty|new_full|resize", re.IGNORECASE)
_SIZE = frozenset({"shape", "size", "len", "numel"})
_CUT = frozenset({"split", "narrow", "chunk", "tensor_split", "index_select", "slice", "unbind"})


def find_relative(parsed: Parsed) -> Definition | None:
    """The first autograd Function of a file that does all of this, or None."""
    functions = [one for one in parsed.definitions if one.kind == "autograd function"]
    if not functions:
        return None
    search = _Search(parsed)
    return next((one for one in functions if search.is_relative(one)), None)


class _Search:
    """One file, with its helper functions by name."""

    def __init__(self, parsed: Parsed) -> None:
        self._scopes = parsed.scopes
        self._helpers: dict[str, FunctionNode] = {}
        for definition in parsed.definitions:
            if isinstance(definition.node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._helpers.setdefault(definition.own_name, definition.node)
        self._gathers: dict[str, int] = {}

    def is_relative(self, function: Definition) -> bool:
        assert isinstance(function.node, ast.ClassDef)
        methods = {node.name: node for node in function.node.body if isinstance(node, ast.FunctionDef)}
        if not {"forward", "backward"} <= set(methods):
            return False
        words = {self._word(node) for node in self._reached(methods["forward"])}
        return (
            self._count(methods["forward"]) >= 2
            and bool(words & _LARGEST)
            and any(_ROOM.search(word) for word in words)
            and bool(words & _SIZE)
            and any(self._cuts(node) for node in self._reached(methods["backward"]))
        )

    def _reached(self, start: FunctionNode) -> Iterator[ast.AST]:
        """The nodes of a function, and of the functions of its file that it names, and so on."""
        waiting = [start]
        seen = {start}
        while waiting:
            for node in ast.walk(waiting.pop()):
                yield node
                helper = self._helpers.get(self._word(node), start)
                if helper not in seen:
                    seen.add(helper)
                    waiting.append(helper)

    def _word(self, node: ast.AST) -> str:
        """What a name or an attribute says; what it was imported as, and not what it is called here."""
        if isinstance(node, ast.Attribute):
            return node.attr
        if not isinstance(node, ast.Name):
            return ""
        owner = self._scopes.place[node].find(node.id) if node in self._scopes.place else None
        return owner.imports.get(node.id, node.id).rpartition(".")[2] if owner else node.id

    def _count(self, start: FunctionNode) -> int:
        """How often a function gathers in one run: directly, or through helpers in its file."""
        return sum(self._count_of(self._word(node.func)) for node in ast.walk(start) if isinstance(node, ast.Call))

    def _count_of(self, name: str) -> int:
        if name not in self._helpers:
            return int(_GATHER.match(name) is not None)
        if name not in self._gathers:
            self._gathers[name] = 0  # while it is looked at: helpers may call each other
            self._gathers[name] = min(2, self._count(self._helpers[name]))
        return self._gathers[name]

    def _cuts(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Slice | ast.Tuple | ast.Name | ast.Attribute | ast.Call)
        return self._word(node) in _CUT
