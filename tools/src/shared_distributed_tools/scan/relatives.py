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
_Names = dict[str, str]
_Helpers = dict[str, ast.FunctionDef]


def find_relative(tree: ast.Module) -> ast.ClassDef | None:
    """The first autograd Function of a file that does all of this, or None."""
    names = imported_names(tree)
    helpers = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and is_autograd_function(node, names) and _is_relative(node, names, helpers):
            return node
    return None


def _is_relative(node: ast.ClassDef, names: _Names, helpers: _Helpers) -> bool:
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    if not {"forward", "backward"} <= methods.keys():
        return False
    forward, backward = (
        list(islice(_reached(methods[name], names, helpers), _MOST)) for name in ("forward", "backward")
    )
    words = {_word(one, names) for one in forward}
    calls = [_word(one.func, names) for one in forward if isinstance(one, ast.Call)]
    gathers = [word for word in calls if _GATHER.match(word) and word not in helpers]
    makes_room = words & _LARGEST and words & _SIZE and any(map(_ROOM.search, words))
    return bool(makes_room) and len(gathers) >= 2 and any(_cuts(one, names) for one in backward)


def _word(node: ast.AST, names: _Names) -> str:
    """What a name or an attribute says: the name that it was imported by, and not the one that it has here."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return names.get(node.id, node.id).rpartition(".")[2] if isinstance(node, ast.Name) else ""


def _reached(start: ast.AST, names: _Names, helpers: _Helpers, around: tuple[ast.AST, ...] = ()) -> Iterator[ast.AST]:
    """The nodes of a function, and of the functions of its file that it names, as often as it names them."""
    for node in ast.walk(start):
        yield node
        helper = helpers.get(_word(node, names))
        if helper and helper not in (start, *around):
            yield from _reached(helper, names, helpers, (start, *around))


def _cuts(node: ast.AST, names: _Names) -> bool:
    """Whether it takes a part of something."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Slice | ast.Tuple | ast.Name | ast.Attribute | ast.Call)
    return _word(node, names) in _CUT
