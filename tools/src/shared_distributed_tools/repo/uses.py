# SPDX-License-Identifier: MIT
"""Who uses a copy: every import of its module and every use of its names in the tree around it.

    for use in find_uses(Tree(repo), "package/distributed.py", ["AllGather", "all_gather"]):
        print(*use.site)

A name reaches a file through an import of the copy, or of a module that imported it from there. From then on it is
followed by Python's rules of scope, through `gather = AllGather(…)` and `self.gather = AllGather(…)` to the calls of
that object. An expression's meaning is written as a path: `package/distributed/AllGather/apply`.

Nothing is imported or run. Not followed are `getattr`, strings, and objects that are passed on.
"""

import ast
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

from .tree import Source, Tree

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Site(NamedTuple):
    """One place, as it is shown."""

    path: str  # relative to the tree, with forward slashes
    line: int
    kind: str
    name: str
    text: str  # the line, stripped


@dataclass(frozen=True, eq=False)
class Use:
    """One place where a tree imports or uses the copy.

    kind:  "import"     one statement, however many names it brings
           "build"      an object made from a class: `AllGather(dim = 1)`
           "call"       of a function, of a class's `apply`, or of an object that was built
           "reference"  any other mention: of a name, or of an object and its attribute
    name:  as the copy calls it; several with commas for an import; "*" for a star, "" for the copy's module itself
    node:  the import statement, the call, or the expression
    owner: the call that built the object which is used here
    bound: imports: the names made here -> the copy's names for them
    is_direct: imports: from the copy itself, and not through another module
    """

    source: Source
    node: ast.Import | ast.ImportFrom | ast.expr
    kind: str
    name: str
    owner: ast.Call | None = None
    bound: dict[str, str] = field(default_factory=dict)
    is_direct: bool = True

    @property
    def site(self) -> Site:
        """The place alone: without the syntax tree, and so without the file in memory."""
        return Site(self.source.path, self.node.lineno, self.kind, self.name, self.source.line(self.node.lineno))


def find_uses(tree: Tree, copy: str, names: Collection[str]) -> list[Use]:
    """Every use of a copy, in order of file and line.

    copy:  its path in the tree; it need not exist any more.
    names: what the copy defines: what a star import brings, and what is a use in the copy's own file, outside of the
           copy's definitions.

    A file that may use the copy and cannot be read is in `tree.unread`.
    """
    modules = _Modules(tree, copy)
    handed_on = {_join(modules.copy, name): _join(modules.copy, name) for name in names}  # and by other modules
    words = {module_path(copy).rpartition("/")[2], *(names if copy.endswith("__init__.py") else ())}
    uses: dict[str, list[Use]] = {}
    while words:
        more: dict[str, str] = {}
        for path in tree.files:
            source = tree.source(path) if path == copy or _has_any(tree.content(path), words) else None
            if source is not None and (path == copy or modules.may_be_reached(source, handed_on)):
                try:
                    file = _File(source, modules, handed_on, names)
                    uses[path] = list(file.uses())
                except RecursionError:
                    tree.give_up(path, "nested too deeply")
                else:
                    more |= file.exports()
        new = {name: meaning for name, meaning in more.items() if name not in handed_on}
        handed_on |= new
        words = {name.rpartition("/")[2] for name in new}
    every = [use for path in sorted(uses) for use in uses[path]]
    return sorted(every, key=lambda use: (use.source.path, *_position(use.node)))


def module_path(path: str) -> str:
    """A file's path as its module has it: without `.py`, and without `__init__`."""
    bare = path.rpartition(".")[0]
    return bare.rpartition("/")[0] if bare.rpartition("/")[2] == "__init__" else bare


def _has_any(content: bytes | None, words: Collection[str]) -> bool:
    return content is not None and (b"import *" in content or any(os.fsencode(word) in content for word in words))


def _position(node: ast.AST) -> tuple[int, ...]:
    return tuple(getattr(node, field, 0) or 0 for field in ("lineno", "col_offset", "end_lineno", "end_col_offset"))


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


class _Modules:
    """Which file of a tree an import means, and whether that is the copy."""

    def __init__(self, tree: Tree, copy: str) -> None:
        self.copy = module_path(copy)
        self.known = {self.copy, *map(module_path, tree.files)}
        self.known |= {"/".join(path.split("/")[:end]) for path in self.known for end in range(1, path.count("/") + 1)}
        self._packages = {path.rpartition("/")[0] for path in tree.files if path.endswith("__init__.py")}
        self._home = self.copy.rpartition("/")[0]  # the folder above the copy's outermost package
        while self._home and self._home in self._packages:
            self._home = self._home.rpartition("/")[0]

    def find(self, file: str, dotted: str, level: int = 0) -> str | None:
        """What an import in a file means, as a path in the tree; None for what lies outside."""
        path = dotted.replace(".", "/")
        folders = file.split("/")[:-1]
        if level:
            return _join(*folders[: len(folders) - level + 1], path) if level <= len(folders) + 1 else None
        # the nearest folder that has it: a tree may hold several checkouts of one project, and each imports its own
        above = ["/".join(folders[:end]) for end in range(len(folders), -1, -1)]
        outside_packages = [place for one in above if one not in self._packages for place in (one, _join(one, "src"))]
        for base in [*outside_packages, self._home, *above]:  # a script in a package finds what lies beside it
            if _join(base, path.partition("/")[0]) in self.known:
                return _join(base, path)
        return None

    def may_be_reached(self, source: Source, handed_on: Collection[str]) -> bool:
        """Whether an import of a file leads to the copy, to something above it or to what another file hands on."""
        wanted = {self.copy, *handed_on}
        wanted |= {"/".join(path.split("/")[:end]) for path in wanted for end in range(path.count("/") + 1)}
        for node in source.imports:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            level = 0 if isinstance(node, ast.Import) else node.level
            if any(self.find(source.path, module, level) in wanted for module in modules):
                return True
        return False

    def name_in_copy(self, meaning: str | None) -> str | None:
        """The copy's name for what a path means, attributes of it included; "" for the module, None for others."""
        if meaning == self.copy:
            return ""
        if meaning is None or not meaning.startswith(self.copy + "/"):
            return None
        name = meaning.removeprefix(self.copy + "/")
        return None if _join(self.copy, name.partition("/")[0]) in self.known else name


class _Scope:
    """A module, class, function, lambda or comprehension, and the names that it binds."""

    def __init__(self, node: ast.AST, parent: "_Scope | None" = None) -> None:
        self.node, self.parent = node, parent
        self.module: _Scope = parent.module if parent else self
        self.bound: set[str] = set()
        self.of_module: set[str] = set()  # by `global`
        self.of_outer: set[str] = set()  # by `nonlocal`

    def owner(self, name: str) -> "_Scope | None":
        """The scope that a name used here belongs to; None where nothing in the file binds it."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.of_module:
                return self.module
            is_visible = scope is self or not isinstance(scope.node, ast.ClassDef)  # methods do not see the class's
            if is_visible and name in scope.bound and name not in scope.of_outer:
                return scope
            scope = scope.parent
        return None


def _scopes(tree: ast.Module) -> dict[ast.AST, _Scope]:
    """The scope that each node of a file stands in."""
    module = _Scope(tree)
    place: dict[ast.AST, _Scope] = {}
    waiting: list[tuple[ast.AST, _Scope]] = [(tree, module)]
    while waiting:
        node, scope = waiting.pop()
        place[node] = scope
        _bind(node, scope)
        inner, outer = scope, scope.parent or scope
        if isinstance(node, (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)):
            inner, outer = _Scope(node, scope), scope
        elsewhere: dict[ast.AST, _Scope] = {}  # children that are not evaluated inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            of_class = [*node.bases, *node.keywords] if isinstance(node, ast.ClassDef) else [node.returns]
            elsewhere = {child: outer for child in [*node.decorator_list, *of_class] if child is not None}
        elif isinstance(node, ast.arguments):
            elsewhere = {child: outer for child in [*node.defaults, *node.kw_defaults] if child is not None}
        elif isinstance(node, ast.arg):
            elsewhere = dict.fromkeys(ast.iter_child_nodes(node), outer)
        elif isinstance(node, ast.comprehension):
            first = scope.node.generators[0]  # type: ignore[attr-defined]
            elsewhere = {node.iter: outer} if node is first else {}  # the first is evaluated outside
        elif isinstance(node, ast.NamedExpr):
            while isinstance(scope.node, _COMPREHENSIONS) and scope.parent:  # `:=` binds outside of them
                scope = scope.parent
            elsewhere = {node.target: scope}
        waiting += [(child, elsewhere.get(child, inner)) for child in ast.iter_child_nodes(node)]
    for scope in set(place.values()):
        module.bound |= scope.of_module
    return place


def _bind(node: ast.AST, scope: _Scope) -> None:
    """Note the names that a node itself binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name) | ast.MatchMapping(rest=str(name)):
            scope.bound.add(name)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            scope.bound.add(name)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            scope.bound.add(name)
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            scope.bound |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
        case ast.Global(names=names):
            scope.of_module |= set(names)
        case ast.Nonlocal(names=names):
            scope.of_outer |= set(names)


class _Built(NamedTuple):
    """An object made from a class of the copy."""

    name: str  # of the class
    call: ast.Call


class _File:
    """One file: what its names mean, what it uses, and what it hands on to files that import it."""

    def __init__(self, source: Source, modules: _Modules, handed_on: dict[str, str], names: Collection[str]) -> None:
        self.source, self.modules, self.handed_on, self.names = source, modules, handed_on, names
        self.place = _scopes(source.tree)
        self.module = self.place[source.tree]
        self.is_copy = module_path(source.path) == modules.copy
        self.meanings: dict[tuple[_Scope, str], str] = {}
        self.built: dict[tuple[_Scope | ast.AST, str], _Built] = {}  # by scope and name, by class and attribute
        self.imports: list[Use] = []
        if self.is_copy:
            self.meanings = {(self.module, name): _join(modules.copy, name) for name in names}
        for node in source.imports:
            self._follow_import(node)
        assignments = [node for node in self.place if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr)]
        for assignment in sorted(assignments, key=_position):
            if isinstance(assignment, ast.Assign):
                self._follow_assignment(assignment.targets, assignment.value)
            elif assignment.value is not None:
                self._follow_assignment([assignment.target], assignment.value)

    def exports(self) -> dict[str, str]:
        """What other files get from here: path -> what it means in the copy."""
        here = module_path(self.source.path)
        return {
            _join(here, name): meaning
            for (scope, name), meaning in self.meanings.items()
            if scope is self.module and not self.is_copy and self.modules.name_in_copy(meaning) is not None
        }

    # ------------------------------------------------------------------ what names mean

    def _follow_import(self, node: ast.Import | ast.ImportFrom) -> None:
        scope = self.place[node]
        bound: dict[str, str] = {}
        for local, meaning, target in self._brought(node):
            scope.bound.add(local)
            key = (scope.owner(local) or scope, local)
            if meaning is not None:
                self.meanings[key] = meaning
            elif node in getattr(scope.node, "body", ()):  # otherwise it is one branch of several
                self.meanings.pop(key, None)
            name = self.modules.name_in_copy(target)
            if name is not None:
                bound[local] = name
        if bound:
            name = "*" if any(alias.name == "*" for alias in node.names) else ", ".join(dict.fromkeys(bound.values()))
            is_direct = "" in bound.values() or self._module_of(node) == self.modules.copy
            self.imports.append(Use(self.source, node, "import", name, bound=bound, is_direct=is_direct))

    def _module_of(self, node: ast.Import | ast.ImportFrom) -> str | None:
        """The module that `from … import` names."""
        if isinstance(node, ast.Import):
            return None
        return self.modules.find(self.source.path, node.module or "", node.level)

    def _brought(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str | None, str | None]]:
        """The names that an import makes, what each means, and what is imported; None for what is not in the tree.

        The last two differ for `import package.module`, which makes the name `package`.
        """
        module = self._module_of(node)
        for alias in node.names:
            if isinstance(node, ast.Import):
                target = self.modules.find(self.source.path, alias.name)
                first = alias.name.partition(".")[0]
                meaning = target if alias.asname else self.modules.find(self.source.path, first)
                yield alias.asname or first, meaning, target
            elif alias.name != "*":
                meaning = None if module is None else self._resolved(_join(module, alias.name))
                yield alias.asname or alias.name, meaning, meaning
            elif module is not None:
                for path, meaning in self.handed_on.items():
                    if path.rpartition("/")[0] == module:
                        yield path.rpartition("/")[2], meaning, meaning

    def _resolved(self, meaning: str) -> str:
        """A path with whatever another module handed on put in its place."""
        parts = meaning.split("/")
        for end in range(len(parts), 0, -1):
            target = self.handed_on.get("/".join(parts[:end]))
            if target is not None:
                return _join(target, *parts[end:])
        return meaning

    def _follow_assignment(self, targets: list[ast.expr], value: ast.expr) -> None:
        values = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        built = next(filter(None, map(self._built, values)), None)
        meaning = self._meaning(value)
        for target in targets:
            if isinstance(target, ast.Name):
                scope = self.place[target]
                key = (scope.owner(target.id) or scope, target.id)
                if built:
                    self.built[key] = self.built[scope.node, target.id] = built
                elif self.modules.name_in_copy(meaning) is not None and key not in self.meanings:
                    self.meanings[key] = meaning or ""
            elif built and _is_of_self(target):
                self.built[self._class_around(target), target.attr] = built

    def _class_around(self, node: ast.AST) -> ast.AST:
        return next((one for one in self.source.around(node) if isinstance(one, ast.ClassDef)), self.source.tree)

    def _meaning(self, node: ast.AST) -> str | None:
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        owner = self.place[node].owner(node.id)
        meaning = self.meanings.get((owner, node.id)) if owner else None
        return None if meaning is None else self._resolved(_join(meaning, *reversed(attributes)))

    def _built(self, node: ast.AST) -> _Built | None:
        """The object that an expression is."""
        if isinstance(node, ast.Call):
            name = self.modules.name_in_copy(self._meaning(node.func)) or ""
            return _Built(name, node) if name[:1].isupper() and "/" not in name else None
        if isinstance(node, ast.Name):
            owner = self.place[node].owner(node.id)
            return self.built.get((owner, node.id)) if owner else None
        return self.built.get((self._class_around(node), node.attr)) if _is_of_self(node) else None

    # ------------------------------------------------------------------ uses

    def uses(self) -> Iterator[Use]:
        """Every use, in no particular order."""
        yield from self.imports
        for node in self.place:
            is_read = isinstance(node, ast.Call) or isinstance(getattr(node, "ctx", None), ast.Load)
            if isinstance(node, ast.Name | ast.Attribute | ast.Call) and is_read and not self._is_of_the_copy(node):
                yield from self._expression_use(node)

    def _is_of_the_copy(self, node: ast.AST) -> bool:
        """Whether a node stands in one of the copy's own definitions: what these use is no call site."""
        if not self.is_copy:
            return False
        made: list[str | None] = []
        for one in self.source.around(node):
            made += [getattr(target, "id", None) for target in getattr(one, "targets", ())]
            made.append(getattr(one, "name", None))
        return not set(self.names).isdisjoint(made)

    def _expression_use(self, node: ast.Name | ast.Attribute | ast.Call) -> Iterator[Use]:
        around = self.source.parents[node]
        is_called = isinstance(around, ast.Call) and around.func is node
        whole = around if is_called or isinstance(around, ast.Attribute) else node  # with what is done with it
        assert isinstance(whole, ast.expr)
        found = self.modules.name_in_copy(self._meaning(node))
        if found is not None and not isinstance(around, ast.Attribute):  # of `a.b.c` the whole is looked at
            name, _, attribute = found.partition("/")
            if is_called and name and attribute in ("", "apply"):
                yield Use(self.source, whole, "build" if name[0].isupper() and not attribute else "call", name)
            else:
                yield Use(self.source, node, "reference", name)
        built = self._built(node)
        if built is not None and is_called:
            yield Use(self.source, whole, "call", built.name, built.call)
        elif built is not None and (whole is not node or built.call is not node):
            yield Use(self.source, whole, "reference", built.name, built.call)


def _is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
