# SPDX-License-Identifier: MIT
"""Python's rules, read off the syntax: what a scope binds, what a module is called."""

import ast
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath


def absolute_names(path: str, packages: Collection[str]) -> tuple[set[str], str]:
    """What absolute imports call the module at a path, and the folder whose files may mean it by that.

    packages: the folders that have an `__init__.py`. A tree may hold several checkouts of one project:
    each imports its own.
    """
    parts = PurePosixPath(module_path(path)).parts
    begin = len(parts) - 1
    while begin and "/".join(parts[:begin]) in packages:
        begin -= 1
    home = parts[:begin]
    if home[-1:] == ("src",):
        home = home[:-1]
    names = {".".join(parts[begin:])}
    names |= {".".join(parts[skipped:]) for skipped in range(len(home), begin)}  # src.package.module
    if begin == len(parts) - 1 and home:  # neither in a package nor at the top: see `_is_module`
        names = {".".join(parts)}
        home = ()
    return names, "/".join(home)


def module_path(path: str) -> str:
    """A file's path as its module has it: without `.py`, and without `__init__`."""
    bare = path.removesuffix(".py")
    return bare.removesuffix("/__init__") if bare.endswith("/__init__") else bare


def bound_names(scope: ast.AST) -> set[str]:
    """The names that a scope binds itself: parameters, assignments, imports, definitions."""
    bound: set[str] = set()
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        parameters = scope.args
        every = [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs, parameters.vararg, parameters.kwarg]
        bound |= {parameter.arg for parameter in every if parameter}
    outside: set[str] = set()
    for node in walk_scope(scope):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            outside |= set(node.names)
    return bound - outside


def walk_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, in order: a nested definition is there as a node, what is inside it is not."""
    waiting = in_scope(scope)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        inside = around_scope(node) if isinstance(node, SCOPES) else list(ast.iter_child_nodes(node))
        waiting += inside[::-1]


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)


def around_scope(node: ast.AST) -> list[ast.AST]:
    """The parts of a definition that are evaluated around it: decorators, defaults, annotations, bases."""
    parts: list[ast.expr | None] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        parts += node.decorator_list
    if isinstance(node, ast.ClassDef):
        parts += [*node.bases, *(keyword.value for keyword in node.keywords)]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        parts += [*node.args.defaults, *node.args.kw_defaults]
        parts += [one.annotation for one in ast.walk(node.args) if isinstance(one, ast.arg)]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parts.append(node.returns)
    return [part for part in parts if part is not None]


def in_scope(node: ast.AST) -> list[ast.AST]:
    """What a scope consists of."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
        return list(node.body)
    if isinstance(node, ast.Lambda):
        return [node.body]
    return list(ast.iter_child_nodes(node))


def assigned_calls(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.Call]]:
    """`target = call(…)` statements of a scope."""
    for node in walk_scope(scope):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            yield node.target, node.value
