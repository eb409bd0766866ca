# SPDX-License-Identifier: MIT
"""Relatives: differentiable ragged gathers that resemble no known file, recognised by what they do.

An autograd Function whose forward gathers twice (the sizes, then the rows), takes the largest size and makes room
up to it, and whose backward cuts its own part out. Helpers in the same file count as part of it.
"""

import ast
import re
from collections.abc import Iterator

from .fingerprint import imported_names, is_autograd_function

_GATHER = re.compile(r"_?all_?gather", re.IGNORECASE)
_LARGEST = frozenset({"max", "amax", "maximum", "MAX"})
_ROOM = re.compile(r"pad|zeros|new_empty|new_full|resize", re.IGNORECASE)
_SIZE = frozenset({"shape", "size", "len", "numel"})
_CUT = frozenset({"split", "narrow", "chunk", "tensor_split", "index_select", "slice", "unbind"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_relative(tree: ast.Module) -> ast.ClassDef | None:
    """The first autograd Function of a file that does all of this, or None."""
    names = imported_names(tree)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and is_autograd_function(node, names)]
    return next(filter(_Search(tree, names).is_relative, classes), None) if classes else None


class _Search:
    """One file, with its helper functions by name."""

    def __init__(self, tree: ast.Module, names: dict[str, str]) -> None:
        self._names = names
        self._helpers: dict[str, _Function] = {}
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                self._helpers.setdefault(node.name, node)
        self._gathers: dict[str, int] = {}

    def is_relative(self, node: ast.ClassDef) -> bool:
        methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        if not {"forward", "backward"} <= set(methods):
            return False
        words = {self._word(one) for one in self._reached(methods["forward"])}
        return (
            self._count(methods["forward"]) >= 2
            and bool(words & _LARGEST)
            and any(_ROOM.search(word) for word in words)
            and bool(words & _SIZE)
            and any(self._cuts(one) for one in self._reached(methods["backward"]))
        )

    def _reached(self, start: _Function) -> Iterator[ast.AST]:
        """The nodes of a function, and of the functions of its file that it names, and so on."""
        waiting = [start]
        reached = {start}
        while waiting:
            for node in ast.walk(waiting.pop()):
                yield node
                helper = self._helpers.get(self._word(node), start)
                if helper not in reached:
                    reached.add(helper)
                    waiting.append(helper)

    def _word(self, node: ast.AST) -> str:
        """What a name or an attribute says: the name that it was imported by, and not the one that it has here."""
        if isinstance(node, ast.Attribute):
            return node.attr
        return self._names.get(node.id, node.id).rpartition(".")[2] if isinstance(node, ast.Name) else ""

    def _count(self, start: _Function) -> int:
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
