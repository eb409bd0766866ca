# SPDX-License-Identifier: MIT
"""Uses of the copy that no import shows, or that may be some: what has to be looked at before its file goes."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from .sites import Use
from .syntax import absolute_names, bound_names, module_path
from .tree import Source, SourceTree


class Remark(NamedTuple):
    """Something a person has to look at, and what to do."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        """With its place in front."""
        return f"{self.path}:{self.line}: {self.text}"


def escaped(tree: SourceTree, uses: list[Use]) -> Iterator[Remark]:
    """Objects kept in `self`, used where the class that built them is not in sight."""
    homes: dict[str, set[ast.AST]] = {}
    for use in uses:
        parent = use.source.parents.get(use.node) if use.kind == "build" else None
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Attribute):
            owner = next((n for n in use.source.around(parent) if isinstance(n, ast.ClassDef)), None)
            if owner is not None:
                homes.setdefault(parent.targets[0].attr, set()).add(owner)
    for path, content in tree.contents.items():
        if not any(name.encode() in content for name in homes):
            continue
        source = tree.source(path)
        for node in ast.walk(source.tree) if source else ():
            if source and isinstance(node, ast.Attribute) and node.attr in homes and _escapes(source, node, homes):
                text = (
                    f"`.{node.attr}` may be the object that another class built; call it there, or rename one of them"
                )
                yield Remark(path, node.lineno, text)


def _escapes(source: Source, node: ast.Attribute, homes: dict[str, set[ast.AST]]) -> bool:
    if not isinstance(node.ctx, ast.Load):
        return False
    base = node.value
    if isinstance(base, ast.Name) and base.id == "self":
        owner = next((n for n in source.around(node) if isinstance(n, ast.ClassDef)), None)
        methods = bound_names(owner) if owner else set()
        return owner not in homes[node.attr] and node.attr not in methods
    while isinstance(base, ast.Attribute):
        base = base.value
    if isinstance(base, ast.Name) and base.id in {local for one in source.imports for local in _made(one)}:
        return False  # `dist.all_gather`
    above = source.parents[node]
    if isinstance(above, ast.Attribute):
        return above.attr in ("is_distributed", "all_reduce_grads")
    statement = source.parents[above]
    is_called = isinstance(above, ast.Call) and above.func is node
    return is_called and isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple)


def _made(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name.partition(".")[0] for alias in node.names}


def named_in_strings(tree: SourceTree, copy: str) -> Iterator[Remark]:
    """`import_module("package.distributed")`, `patch("package.distributed.AllGather")`."""
    packages = {path.rpartition("/")[0] for path in tree.contents if path.endswith("/__init__.py")}
    names = tuple(name for name in absolute_names(copy, packages)[0] if "." in name)
    for path, content in tree.contents.items():
        source = tree.source(path) if path != copy and any(name.encode() in content for name in names) else None
        for node in ast.walk(source.tree) if source else ():
            said = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if isinstance(node, ast.Constant) and any(said == name or said.startswith(f"{name}.") for name in names):
                yield Remark(path, node.lineno, "names the copy's module in a string; the file goes away")


def broken(tree: SourceTree, copy: str) -> Iterator[Remark]:
    """Files that do not parse and have the module's name in them."""
    word = module_path(copy).rpartition("/")[2].encode()
    for path, why in tree.broken().items():
        if path != copy and (word in tree.contents[path] or not tree.contents[path]):
            yield Remark(path, 1, f"does not parse ({why}), and may use the copy; mend it first")
