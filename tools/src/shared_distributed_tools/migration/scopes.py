# SPDX-License-Identifier: MIT
"""Which scope every name of a file belongs to, and the names that nothing defines.

Python's own `symtable` knows too, but not by node, and lays its tables out differently from version to version.
Annotations are left out: nothing here depends on them, and what they name need not exist.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator
from typing import NamedTuple

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CATCH_NAME_ERROR = frozenset({"NameError", "Exception", "BaseException"})
_DYNAMIC = frozenset({"exec", "globals", "vars", "__builtins__"})  # can make names that no text shows
_OTHER_PYTHONS = frozenset({"version_info", "TYPE_CHECKING", "PY2", "PY3"})  # an `if` on these may never run
_ALWAYS_THERE = frozenset(dir(builtins)) | {
    *("__name__", "__file__", "__doc__", "__package__", "__loader__", "__spec__", "__path__", "__annotations__"),
    *("__dict__", "__debug__", "__class__", "__module__", "__qualname__", "__conditional_annotations__"),
    *("_", "WindowsError"),  # gettext installs the first; the second is there on Windows only
}


class Scope:
    """A module, class, function, lambda or comprehension, and the names that it binds."""

    def __init__(self, kind: str, parent: "Scope | None" = None) -> None:
        self.kind = kind
        self.parent = parent
        self.bound: set[str] = set()
        self.imports: dict[str, str] = {}  # name -> what it stands for, as in "torch.distributed"
        self.parameters: dict[str, str] = {}  # name -> its place in the signature
        self.assigned: dict[str, list[ast.expr | None]] = {}  # values of `name = …`; None where bound otherwise
        self.of_module: set[str] = set()  # by `global`
        self.of_outer: set[str] = set()  # by `nonlocal`

    @property
    def module(self) -> "Scope":
        """The outermost scope."""
        return self if self.parent is None else self.parent.module

    def find(self, name: str) -> "Scope | None":
        """The scope that a name used here belongs to; None where nothing in the file binds it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.of_module:
                return scope.module if name in scope.module.bound else None
            visible = scope is self or scope.kind != "class"  # methods do not see their class's names
            if visible and name in scope.bound and name not in scope.of_outer:
                return scope
            scope = scope.parent
        return None

    def is_within(self, other: "Scope") -> bool:
        """Whether it is another scope, or lies in it."""
        scope: Scope | None = self
        while scope is not None and scope is not other:
            scope = scope.parent
        return scope is other


class Undefined(NamedTuple):
    """A use of a name that is never defined."""

    line: int
    name: str


class Scopes:
    """Every scope of a file. RecursionError for code that is nested too deeply."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope("module")
        self.place: dict[ast.AST, Scope] = {}  # the scope that a node with a name stands in
        self.opened: dict[ast.AST, Scope] = {}  # the scope that a definition, lambda or comprehension opens
        self.has_star = False
        self.is_dynamic = False
        self._loads: list[ast.Name] = []
        self._unsure = 0  # depth of blocks in which an undefined name may be meant
        for statement in tree.body:
            self._visit(statement, self.module)

    def undefined(self) -> list[Undefined]:
        """Every use of a name that neither the file nor Python defines, by line.

        Tells nothing where names can come from elsewhere: see `has_star` and `is_dynamic`.
        """
        return sorted({Undefined(node.lineno, node.id) for node in self._loads if self._is_undefined(node)})

    def _is_undefined(self, node: ast.Name) -> bool:
        is_mangled = node.id.startswith("__") and not node.id.endswith("__")
        return node.id not in _ALWAYS_THERE and not is_mangled and self.place[node].find(node.id) is None

    def _bind(self, name: str, scope: Scope, value: ast.expr | None = None) -> None:
        owner = scope.module if name in scope.of_module else scope
        owner.bound.add(name)
        owner.assigned.setdefault(name, []).append(value)

    def _visit_all(self, nodes: Iterable[ast.AST | None], scope: Scope) -> None:
        for node in nodes:
            if node is not None:
                self._visit(node, scope)

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Name):
            self._visit_name(node, scope)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            self._visit_function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._visit_class(node, scope)
        elif isinstance(node, _COMPREHENSIONS):
            self._visit_comprehension(node, scope)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._visit_import(node, scope)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self.place[node] = scope
            (scope.of_module if isinstance(node, ast.Global) else scope.of_outer).update(node.names)
        elif isinstance(node, ast.NamedExpr):
            self._visit(node.value, scope)
            while scope.kind == "comprehension" and scope.parent is not None:  # `:=` binds outside of them
                scope = scope.parent
            self._visit(node.target, scope)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._visit(node.value, scope)
            self.place[node.targets[0]] = scope
            self._bind(node.targets[0].id, scope, node.value)
        elif isinstance(node, ast.AnnAssign):
            self._visit_all((node.value, node.target), scope)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            self._visit_try(node, scope)
        elif isinstance(node, ast.If | ast.IfExp) and _names(node.test) & _OTHER_PYTHONS:
            self._unsure += 1
            self._visit_all(ast.iter_child_nodes(node), scope)
            self._unsure -= 1
        elif type(node).__name__ == "TypeAlias":
            self._visit(node.name, scope)  # type: ignore[attr-defined]
        else:
            self._visit_pattern_name(node, scope)
            self._visit_all(ast.iter_child_nodes(node), scope)

    def _visit_name(self, node: ast.Name, scope: Scope) -> None:
        self.place[node] = scope
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id, scope)
        elif isinstance(node.ctx, ast.Del):
            scope.bound.add(node.id)
        elif not self._unsure:
            self._loads.append(node)
        if node.id in _DYNAMIC:
            self.is_dynamic = True

    def _visit_pattern_name(self, node: ast.AST, scope: Scope) -> None:
        """`except … as name`, and the names that a `case` captures: plain strings in the tree."""
        name = None
        if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            name = node.name
        elif isinstance(node, ast.MatchMapping):
            name = node.rest
        if name is not None:
            self.place[node] = scope
            self._bind(name, scope)

    def _visit_function(self, node: FunctionNode | ast.Lambda, scope: Scope) -> None:
        arguments = node.args
        if not isinstance(node, ast.Lambda):
            self.place[node] = scope
            self._bind(node.name, scope)
            self._visit_all(node.decorator_list, scope)
        self._visit_all((*arguments.defaults, *arguments.kw_defaults), scope)
        inner = self.opened[node] = Scope("function", self._with_type_parameters(node, scope))
        for label, argument in labelled(arguments):
            inner.bound.add(argument.arg)
            inner.parameters[argument.arg] = label
            inner.assigned[argument.arg] = [None]
        unsure = self._unsure
        if isinstance(node, ast.Lambda):
            self._visit(node.body, inner)
        else:
            self._unsure = 0  # it runs later, outside of a `try` around its definition
            self._visit_all(node.body, inner)
        self._unsure = unsure

    def _visit_class(self, node: ast.ClassDef, scope: Scope) -> None:
        self.place[node] = scope
        self._bind(node.name, scope)
        self._visit_all(node.decorator_list, scope)
        outer = self._with_type_parameters(node, scope)
        self._visit_all((*node.bases, *node.keywords), outer)
        inner = self.opened[node] = Scope("class", outer)
        self._visit_all(node.body, inner)

    def _with_type_parameters(self, node: ast.AST, scope: Scope) -> Scope:
        """A scope around a definition for its `[T]`; since Python 3.12."""
        parameters = getattr(node, "type_params", [])
        if not parameters:
            return scope
        outer = Scope("function", scope)
        outer.bound.update(parameter.name for parameter in parameters)
        return outer

    def _visit_comprehension(self, node: ast.AST, scope: Scope) -> None:
        inner = self.opened[node] = Scope("comprehension", scope)
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        for index, generator in enumerate(generators):
            self._visit(generator.iter, inner if index else scope)  # the first is evaluated outside
            self._visit_all((generator.target, *generator.ifs), inner)
        results = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)  # type: ignore[attr-defined]
        self._visit_all(results, inner)

    def _visit_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.has_star = True
                continue
            if isinstance(node, ast.ImportFrom):
                bound = alias.asname or alias.name
                meaning = f"{'.' * node.level}{node.module or ''}.{alias.name}"
            else:
                bound = alias.asname or alias.name.partition(".")[0]
                meaning = alias.name if alias.asname else bound
            self._bind(bound, scope)
            (scope.module if bound in scope.of_module else scope).imports.setdefault(bound, meaning)

    def _visit_try(self, node: ast.AST, scope: Scope) -> None:
        body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
        caught = {name for handler in node.handlers for name in _caught(handler)}  # type: ignore[attr-defined]
        guarded = bool(caught & _CATCH_NAME_ERROR)
        self._unsure += guarded
        self._visit_all(body, scope)
        self._unsure -= guarded
        self._visit_all((*node.handlers, *node.orelse, *node.finalbody), scope)  # type: ignore[attr-defined]


def labelled(arguments: ast.arguments) -> Iterator[tuple[str, ast.arg]]:
    """Every parameter with its place in the signature: names may change, places count."""
    for index, argument in enumerate((*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)):
        yield str(index), argument
    for label, rest in (("*", arguments.vararg), ("**", arguments.kwarg)):
        if rest is not None:
            yield label, rest


def _caught(handler: ast.ExceptHandler) -> set[str]:
    return {"BaseException"} if handler.type is None else _names(handler.type)


def _names(node: ast.AST) -> set[str]:
    """Every name and attribute that stands in an expression."""
    found = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            found.add(child.id)
        elif isinstance(child, ast.Attribute):
            found.add(child.attr)
    return found
