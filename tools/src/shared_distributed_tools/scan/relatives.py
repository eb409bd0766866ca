# SPDX-License-Identifier: MIT
"""Relatives: differentiable ragged gathers that resemble no known file, recognised by what they do.

An autograd Function whose forward gathers twice (the sizes, then the rows), takes the largest size and makes room
up to it, and whose backward cuts its own part out. Helpers in the same file count as part of it.
"""

import ast
import re
from collections.abc import Iterator
from itertools import islice

from .fingerprint import imported_names, is_autograd_function

_MOST = 100_000  # nodes looked at: helpers may call helpers that call helpers
_GATHER = re.compile(r"_?all_?gather", re.IGNORECASE)
_LARGEST = frozenset({"max", "amax", "maximum", "MAX"})
_ROOM = re.compile(r"pad|zeros|new_empty|new_full|resize", re.IGNORECASE)
_SIZE = frozenset({"shape", "size", "len", "numel"})
_CUT = frozenset({"split", "narrow", "chunk", "tensor_split", "index_select", "slice", "unbind"})


def find_relative(tree: ast.Module) -> ast.ClassDef | None:
    """The first autograd Function of a file that does all of this, or None."""
    file = _File(tree)
    return next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and file.has_relative(node)), None)


class _File:
    """A file's functions by name, and what its names mean."""

    def __init__(self, tree: ast.Module) -> None:
        self.names = imported_names(tree)
        self.helpers = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    def has_relative(self, node: ast.ClassDef) -> bool:
        """Whether a class is one."""
        methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        if not is_autograd_function(node, self.names) or not {"forward", "backward"} <= methods.keys():
            return False
        forward, backward = (list(islice(self.reached(methods[name]), _MOST)) for name in ("forward", "backward"))
        words = set(map(self.word, forward))
        calls = [self.word(one.func) for one in forward if isinstance(one, ast.Call)]
        gathers = [word for word in calls if _GATHER.match(word) and word not in self.helpers]
        makes_room = words & _LARGEST and words & _SIZE and any(map(_ROOM.search, words))
        return bool(makes_room) and len(gathers) >= 2 and any(map(self.cuts, backward))

    def word(self, node: ast.AST) -> str:
        """What a name or an attribute says: the name that it was imported by, and not the one that it has here."""
        if isinstance(node, ast.Attribute):
            return node.attr
        return self.names.get(node.id, node.id).rpartition(".")[2] if isinstance(node, ast.Name) else ""

    def reached(self, start: ast.AST, around: tuple[ast.AST, ...] = ()) -> Iterator[ast.AST]:
        """The nodes of a function, and of the functions of its file that it names, as often as it names them."""
        for node in ast.walk(start):
            yield node
            helper = self.helpers.get(self.word(node))
            if helper and helper not in (start, *around):
                yield from self.reached(helper, (start, *around))

    def cuts(self, node: ast.AST) -> bool:
        """Whether it takes a part of something."""
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Slice | ast.Tuple | ast.Name | ast.Attribute | ast.Call)
        return self.word(node) in _CUT
