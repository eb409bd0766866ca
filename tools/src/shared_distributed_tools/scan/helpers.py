# SPDX-License-Identifier: MIT
"""Small helpers that originals use and forgot to define, with the meaning that their names plainly have.

A fork that defined one has mended itself: nothing is lost when its file is replaced. Whatever is written in a way that
is not known here is taken for an edit.
"""

import ast
import re
from collections.abc import Collection, Iterable

from .fingerprint import Definition, Known

_ROOM = frozenset(
    {"pad", "cat", "concat", "zeros", "new_zeros", "zeros_like", "empty", "new_empty", "full", "new_full"}
)
_PLAIN = frozenset({"size", "dim", "list", "tuple", "len", "max", "abs", "reversed", "exists"}) | _ROOM
_CHECK = re.compile(r"return (?:v is not None|not \(?v is None\)?)")
_AT_THE_END = re.compile(r"0, [\w.\[\]() -]+[\])]$")  # (…, 0, missing): after what is there, and not before


def mending(extra: Iterable[Definition], copied: Iterable[Definition], known: dict[str, Known]) -> set[str]:
    """The names of definitions that supply what the copied ones lack, and do what those names say."""
    defined = {one.name: one for one in extra}
    plain: set[str] = set()
    waiting = [one.node for one in copied]
    while waiting:
        node = waiting.pop()
        for name in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}:
            definition = defined.get(name)
            if definition and name not in plain and name not in known and _is_plain(definition.node):
                plain.add(name)
                waiting.append(definition.node)
    return plain


def is_none_check(node: ast.AST) -> bool:
    """Whether it is a function that says whether its argument is not None, by whatever name."""
    names, body = _plain_parts(node)
    if len(names) != 1 or len(body) != 1:
        return False
    return bool(_CHECK.fullmatch(re.sub(rf"\b{names[0]}\b", "v", ast.unparse(body[0]))))


def _plain_parts(node: ast.AST) -> tuple[list[str], list[ast.stmt]]:
    """The parameters of a plain function, and its statements without the docstring; nothing for other definitions."""
    if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.args.vararg or node.args.kwarg:
        return [], []
    names = [one.arg for one in node.args.args]
    return names, node.body[1:] if ast.get_docstring(node) is not None else node.body


def _is_plain(node: ast.AST) -> bool:
    """Whether a definition has the meaning of its name."""
    names, body = _plain_parts(node)
    match node:
        case ast.FunctionDef(name="exists"):
            return is_none_check(node)
        case ast.FunctionDef(name="pad_dim_to", args=ast.arguments(defaults=defaults)) if body and len(names) >= 3:
            return len(defaults) >= len(names) - 3 and _is_padding(body, *names[:3])
    return False


def _is_padding(body: list[ast.stmt], tensor: str, length: str, dim: str) -> bool:
    """Whether some statements fill a tensor up at the end of one dim, and do nothing else."""
    text = "\n".join(map(ast.unparse, body))
    is_measured = any(f"{length} - {tensor}.{how}" in text for how in (f"shape[{dim}]", f"size({dim})"))
    calls = {_last_name(one.func) for one in _nodes(body) if isinstance(one, ast.Call)}
    if not is_measured or not calls & _ROOM or not calls <= _PLAIN or not isinstance(body[-1], ast.Return):
        return False
    values: dict[str, ast.expr] = {}
    for statement in body[:-1]:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = value
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))]) if name in values:
                pass  # shape[dim] = missing
            case ast.If(body=[ast.Return(value=ast.Name(id=name))], orelse=[]) if name == tensor:
                pass  # nothing is missing
            case _:
                return False
    return _ends_with_room(body[-1].value, values, tensor)


def _ends_with_room(value: ast.expr | None, values: dict[str, ast.expr], tensor: str) -> bool:
    """Whether `pad(tensor, (…, 0, missing))` or `cat((tensor, room))` is what an expression does."""
    if not isinstance(value, ast.Call) or not value.args:
        return False
    how, first = _last_name(value.func), value.args[0]
    if how in ("cat", "concat"):
        return isinstance(first, ast.Tuple | ast.List) and ast.unparse(first.elts[0]) == tensor and len(first.elts) == 2
    if how != "pad" or ast.unparse(first) != tensor or len(value.args) < 2:
        return False
    amounts = value.args[1]
    if isinstance(amounts, ast.Name):
        amounts = values.get(amounts.id, amounts)
    return bool(_AT_THE_END.search(ast.unparse(amounts)))


def _nodes(body: Collection[ast.stmt]) -> list[ast.AST]:
    return [node for statement in body for node in ast.walk(statement)]


def _last_name(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))
