# SPDX-License-Identifier: MIT
"""Defects of a source, made from its syntax tree: each changes one thing in one function.

| kind | change |
|---|---|
| comparison | `<` becomes `<=`, `==` becomes `!=`, `in` becomes `not in`, … |
| boolean | `and` becomes `or`; `not x` becomes `x` |
| condition | `if x` becomes `if not x` |
| arithmetic | `+` becomes `-`, `*` becomes `+`, `//` becomes `*`, … |
| constant | a number grows by one; `True` becomes `False` |
| argument | a keyword argument is left out |
| attribute | `rank` becomes `world`, and the reverse |
| statement | a call, a `raise` or an assignment to an attribute is left out |
"""

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Div: ast.Mult,
}
SWAPPED = {"rank": "world", "world": "rank", "get_rank": "get_world_size", "get_world_size": "get_rank"}


class Defect(NamedTuple):
    """One change: where it is, of which kind, the line before and after, and the whole source with it."""

    function: str
    line: int
    kind: str
    before: str
    after: str
    source: str


def defects_of(source: str) -> Iterator[Defect]:
    """Every defect that this module knows, in the order of the source."""
    tree = ast.parse(source)
    for function, path in _functions(tree):
        docstring = ast.get_docstring(function, clean=False)
        for index, node in enumerate(ast.walk(function)):
            if isinstance(node, ast.Constant) and node.value == docstring:
                continue
            for kind, changed in _changes(node):
                yield _defect(source, path, index, node, kind, changed)


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Top-level functions and methods, with their names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, node.name
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    yield member, f"{node.name}.{member.name}"


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What can be changed about one node, as a node to put in its place."""
    changed = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and isinstance(changed, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        changed.ops[0] = COMPARISONS[type(node.ops[0])]()
        yield "comparison", changed
    elif isinstance(node, ast.BoolOp) and isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "boolean", changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "boolean", node.operand
    elif isinstance(node, ast.If) and isinstance(changed, ast.If):
        changed.test = ast.UnaryOp(ast.Not(), changed.test)
        yield "condition", changed
    elif isinstance(node, ast.BinOp) and isinstance(changed, ast.BinOp) and type(node.op) in ARITHMETIC:
        changed.op = ARITHMETIC[type(node.op)]()
        yield "arithmetic", changed
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call) and isinstance(changed, ast.Call):
        for position in range(len(node.keywords)):
            fewer = copy.deepcopy(changed)
            del fewer.keywords[position]
            yield "argument", fewer
    elif isinstance(node, ast.Attribute) and isinstance(changed, ast.Attribute) and node.attr in SWAPPED:
        changed.attr = SWAPPED[node.attr]
        yield "attribute", changed
    elif _can_be_left_out(node):
        yield "statement", ast.Pass()


def _can_be_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)


def _defect(source: str, path: str, index: int, node: ast.AST, kind: str, changed: ast.AST) -> Defect:
    tree = ast.parse(source)
    functions = {name: function for function, name in _functions(tree)}
    target = list(ast.walk(functions[path]))[index]
    broken = ast.fix_missing_locations(_Replace(target, changed).visit(tree))
    before, after = ast.unparse(node).splitlines()[0], ast.unparse(changed).splitlines()[0]
    return Defect(path, getattr(node, "lineno", 0), kind, before, after, ast.unparse(broken))


class _Replace(ast.NodeTransformer):
    """One node by another."""

    def __init__(self, target: ast.AST, changed: ast.AST) -> None:
        self.target = target
        self.changed = changed

    def visit(self, node: ast.AST) -> ast.AST:
        """The node, or what takes its place."""
        if node is self.target:
            return self.changed
        visited: ast.AST = self.generic_visit(node)
        return visited
