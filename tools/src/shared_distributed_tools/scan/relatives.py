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


def find_relative(tree: ast.Module) -> ast.ClassDef | None:
    """The first autograd Function of a file that does all of this, or None."""
    nodes, names = list(ast.walk(tree)), imported_names(tree)
    classes = [node for node in nodes if isinstance(node, ast.ClassDef) and is_autograd_function(node, names)]
    helpers = {node.name: node for node in reversed(nodes) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return next(filter(_File(names, helpers).is_relative, classes), None)


class _File:
    """The names that a file imports, and its functions by name."""

    def __init__(self, names: dict[str, str], helpers: dict[str, ast.FunctionDef | ast.AsyncFunctionDef]) -> None:
        self.names, self.helpers = names, helpers
        self.counts: dict[str, int] = {}

    def is_relative(self, node: ast.ClassDef) -> bool:
        methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        if not {"forward", "backward"} <= methods.keys():
            return False
        words = {self.word(one) for one in self.reached(methods["forward"])}
        makes_room = words & _LARGEST and words & _SIZE and any(map(_ROOM.search, words))
        is_cut = any(self.cuts(one) for one in self.reached(methods["backward"]))
        return bool(makes_room) and is_cut and self.gathers(methods["forward"]) >= 2

    def word(self, node: ast.AST) -> str:
        """What a name or an attribute says: the name that it was imported by, and not the one that it has here."""
        if isinstance(node, ast.Attribute):
            return node.attr
        return self.names.get(node.id, node.id).rpartition(".")[2] if isinstance(node, ast.Name) else ""

    def reached(self, start: ast.AST) -> Iterator[ast.AST]:
        """The nodes of a function, and of the functions of its file that it names, and so on."""
        waiting, reached = [start], {start}
        while waiting:
            for node in ast.walk(waiting.pop()):
                yield node
                helper = self.helpers.get(self.word(node), start)
                waiting += {helper} - reached
                reached.add(helper)

    def gathers(self, start: ast.AST) -> int:
        """How often a function gathers in one run: directly, or through helpers in its file."""
        calls = (self.word(node.func) for node in ast.walk(start) if isinstance(node, ast.Call))
        return sum(self.gathers_as(word) for word in calls)

    def gathers_as(self, word: str) -> int:
        """The same of whatever is called so; 2 for more."""
        if word not in self.helpers:
            return int(_GATHER.match(word) is not None)
        if word not in self.counts:
            self.counts[word] = 0  # while it is looked at: helpers may call each other
            self.counts[word] = min(2, self.gathers(self.helpers[word]))
        return self.counts[word]

    def cuts(self, node: ast.AST) -> bool:
        """Whether it takes a part of something."""
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Slice | ast.Tuple | ast.Name | ast.Attribute | ast.Call)
        return self.word(node) in _CUT
