# SPDX-License-Identifier: MIT
"""Relatives: differentiable ragged gathers that resemble no known file, recognised by what they do.

An autograd Function whose forward gathers twice (the sizes, then the rows), takes the largest size and makes room
up to it, and whose backward cuts its own part out. Helpers in the same file count as part of it.
"""

import ast
import re
from collections import Counter, defaultdict

from .fingerprint import imported_names, is_autograd_function

_GATHER = re.compile(r"_?all_?gather", re.IGNORECASE)
_LARGEST = frozenset({"max", "amax", "maximum", "MAX"})
_ROOM = re.compile(r"pad|zeros|new_empty|new_full|resize", re.IGNORECASE)
_SIZE = frozenset({"shape", "size", "len", "numel"})
_CUT = frozenset({"split", "narrow", "chunk", "tensor_split", "index_select", "slice", "unbind"})
_PARTS = ast.Slice | ast.Tuple | ast.Name | ast.Attribute | ast.Call
_FORWARD = frozenset({"gathers", "gathers again", "takes the largest", "looks at sizes", "makes room"})


def find_relative(tree: ast.Module) -> ast.ClassDef | None:
    """The first autograd Function of a file that does all of this, or None."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = imported_names(tree)
    functions = [node for node in classes if is_autograd_function(node, names)]
    if not functions:
        return None
    file = _File(tree, names)
    for node in functions:
        methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        if {"forward", "backward"} <= methods.keys():
            does, undoes = file.facts[methods["forward"]], file.facts[methods["backward"]]
            if does >= _FORWARD and "cuts" in undoes:
                return node
    return None


class _File:
    """What each function of a file does, in words, with what the functions do that it names."""

    def __init__(self, tree: ast.Module, names: dict[str, str]) -> None:
        self.names = names
        self.facts: dict[ast.AST, set[str]] = {}
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        helpers = {node.name: node for node in functions}
        naming: dict[ast.AST, Counter[ast.AST]] = defaultdict(Counter)  # helper -> who names it, how often
        for node in functions:
            self.facts[node] = set()
        self.helpers = helpers
        waiting: list[tuple[ast.AST, str]] = []
        for node in functions:
            for inner in ast.walk(node):
                word = self._word(inner)
                if word in helpers and helpers[word] is not node:
                    naming[helpers[word]][node] += 1
                waiting += [(node, fact) for fact in self._own(inner, word)]
        while waiting:  # each fact goes from a helper to those who name it, once
            helper, fact = waiting.pop()
            if fact == "gathers" and fact in self.facts[helper]:
                fact = "gathers again"
            if fact in self.facts[helper]:
                continue
            self.facts[helper].add(fact)
            for other, times in naming[helper].items():
                waiting += [(other, "gathers" if fact == "gathers again" else fact)] * min(times, 2)

    def _own(self, node: ast.AST, word: str) -> list[str]:
        """What one node does."""
        facts = []
        called = self._word(node.func) if isinstance(node, ast.Call) else ""
        if _GATHER.match(called) and called not in self.helpers:
            facts.append("gathers")
        if word in _LARGEST:
            facts.append("takes the largest")
        if word in _SIZE:
            facts.append("looks at sizes")
        if _ROOM.search(word):
            facts.append("makes room")
        if word in _CUT or (isinstance(node, ast.Subscript) and isinstance(node.slice, _PARTS)):
            facts.append("cuts")
        return facts

    def _word(self, node: ast.AST) -> str:
        """What a name or an attribute says: the name that it was imported by, and not the one that it has here."""
        if isinstance(node, ast.Attribute):
            return node.attr
        return self.names.get(node.id, node.id).rpartition(".")[2] if isinstance(node, ast.Name) else ""
