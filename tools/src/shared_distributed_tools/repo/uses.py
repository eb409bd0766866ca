# SPDX-License-Identifier: MIT
"""Who uses a copy: every import of its module and every use of its names in the tree around it.

    for use in find_uses(Tree(repo), "package/distributed.py", ["AllGather", "all_gather"]):
        print(*use.site)

A name reaches a file through an import of the copy, or of a module that imported it from there. In that file every
mention of the name is a use: names are followed by spelling, not by scope. So are objects: after `g = AllGather(…)` a
`g` in the same function, after `self.g = AllGather(…)` a `self.g` in the same class.

Nothing is imported or run. Not followed are `getattr`, strings, and objects that are passed on.
"""

import ast
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

from .tree import Source, Tree

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)


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
    through: the module that hands the name on, "" where it comes from the copy itself
    """

    source: Source
    node: ast.Import | ast.ImportFrom | ast.expr
    kind: str
    name: str
    owner: ast.Call | None = None
    bound: dict[str, str] = field(default_factory=dict)
    through: str = ""

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
        wanted = {modules.copy, *handed_on}
        wanted |= {"/".join(path.split("/")[:end]) for path in wanted for end in range(path.count("/") + 1)}
        for path in tree.files:
            source = tree.source(path) if path == copy or _has_any(tree.content(path), words) else None
            if source is not None and (path == copy or modules.may_be_reached(source, wanted)):
                try:
                    file = _File(source, modules, handed_on, wanted, names)
                    uses[path] = list(file.uses())
                except RecursionError:
                    tree.give_up(path, "nested too deeply")
                else:
                    more |= file.exports()
        new = {name: meaning for name, meaning in more.items() if name not in handed_on}
        handed_on |= new
        words = {name.rpartition("/")[2] for name in new}
    every = [use for path in sorted(uses) for use in uses[path]]
    return sorted(every, key=lambda use: (use.source.path, *position(use.node)))


def module_path(path: str) -> str:
    """A file's path as its module has it: without `.py`, and without `__init__`."""
    bare = path.rpartition(".")[0]
    return bare.rpartition("/")[0] if bare.rpartition("/")[2] == "__init__" else bare


def _has_any(content: bytes | None, words: Collection[str]) -> bool:
    return content is not None and (b"import *" in content or any(os.fsencode(word) in content for word in words))


def position(node: ast.AST) -> tuple[int, ...]:
    """Where a node begins and ends."""
    return tuple(getattr(node, field, 0) or 0 for field in ("lineno", "col_offset", "end_lineno", "end_col_offset"))


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def scope_of(source: Source, node: ast.AST) -> ast.AST:
    """The function, class or module that a node stands in."""
    return next((one for one in source.around(node) if isinstance(one, _SCOPES)), source.tree)


def class_of(source: Source, node: ast.AST) -> ast.AST:
    """The class that a node stands in; the module where there is none."""
    return next((one for one in source.around(node) if isinstance(one, ast.ClassDef)), source.tree)


def is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Whether a node is `self.name`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


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

    def may_be_reached(self, source: Source, wanted: Collection[str]) -> bool:
        """Whether an import of a file leads to the copy, to something above it or to what another file hands on."""
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


class _File:
    """One file: what its names mean, what it uses, and what it hands on to files that import it."""

    def __init__(
        self,
        source: Source,
        modules: _Modules,
        handed_on: dict[str, str],
        wanted: Collection[str],
        names: Collection[str],
    ) -> None:
        self.source, self.modules, self.handed_on, self.names = source, modules, handed_on, names
        self.is_copy = module_path(source.path) == modules.copy
        self.meanings = {name: _join(modules.copy, name) for name in names} if self.is_copy else {}
        self.built: dict[tuple[ast.AST, str], ast.Call] = {}  # by scope and name, by class and `self.name`
        self.imports = [use for node in source.imports for use in self._import_use(node, wanted)]
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and self._class_built(node):
                self._follow_object(node)

    def exports(self) -> dict[str, str]:
        """What other files get from here: path -> what it means in the copy."""
        here = module_path(self.source.path)
        names = {name for use in self.imports for name in use.bound} if not self.is_copy else set()
        return {_join(here, name): self.meanings[name] for name in names}

    def _import_use(self, node: ast.Import | ast.ImportFrom, wanted: Collection[str]) -> Iterator[Use]:
        bound: dict[str, str] = {}
        for local, meaning, target in self._brought(node):
            name = self.modules.name_in_copy(target)
            if name is not None:
                bound[local] = name
            if meaning is not None and (name is not None or meaning in wanted):
                self.meanings[local] = meaning
        if bound:
            name = "*" if any(alias.name == "*" for alias in node.names) else ", ".join(dict.fromkeys(bound.values()))
            module = self._module_of(node)
            is_direct = "" in bound.values() or module == self.modules.copy
            yield Use(self.source, node, "import", name, bound=bound, through="" if is_direct else module or "")

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
                meaning = None if module is None else self._resolved(_join(module, alias.name))[0]
                yield alias.asname or alias.name, meaning, meaning
            elif module is not None:
                for path, meaning in self.handed_on.items():
                    if path.rpartition("/")[0] == module:
                        yield path.rpartition("/")[2], meaning, meaning

    def _resolved(self, meaning: str) -> tuple[str, str]:
        """A path with whatever another module handed on put in its place, and that module."""
        parts = meaning.split("/")
        for end in range(len(parts), 0, -1):
            path = "/".join(parts[:end])
            if self.handed_on.get(path, path) != path:
                return _join(self.handed_on[path], *parts[end:]), "/".join(parts[: end - 1])
        return meaning, ""

    def _meaning(self, node: ast.AST) -> tuple[str | None, str]:
        """The copy's name for an expression, and the module that hands it on."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.meanings:
            return None, ""
        meaning, through = self._resolved(_join(self.meanings[node.id], *reversed(attributes)))
        return self.modules.name_in_copy(meaning), through

    def _class_built(self, node: ast.Call) -> str:
        name = self._meaning(node.func)[0] or ""
        return name if name[:1].isupper() and "/" not in name else ""

    def _follow_object(self, call: ast.Call) -> None:
        """Note the variable or attribute that an object is kept in."""
        around = self.source.parents[call]
        if isinstance(around, ast.IfExp):
            around = self.source.parents[around]
        targets = getattr(around, "targets", [getattr(around, "target", None)])
        for target in targets if isinstance(around, ast.Assign | ast.AnnAssign | ast.NamedExpr) else ():
            if isinstance(target, ast.Name):
                self.built[scope_of(self.source, target), target.id] = call
            elif is_of_self(target):
                self.built[class_of(self.source, target), f"self.{target.attr}"] = call

    def _object(self, node: ast.AST) -> ast.Call | None:
        """The call that built the object that an expression is."""
        if isinstance(node, ast.Call):
            return node if self._class_built(node) else None
        if isinstance(node, ast.Name) and self.built:
            places = self.source.around(node)
            return next((self.built[one, node.id] for one in places if (one, node.id) in self.built), None)
        if not is_of_self(node):
            return None
        own = class_of(self.source, node)
        return self.built.get((own, f"self.{node.attr}")) or self.built.get((own, node.attr))

    def uses(self) -> Iterator[Use]:
        """Every use, in no particular order."""
        yield from self.imports
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Name | ast.Attribute | ast.Call) and not self._is_of_the_copy(node):
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
        if not isinstance(node, ast.Call) and not isinstance(node.ctx, ast.Load):
            return
        around = self.source.parents[node]
        is_called = isinstance(around, ast.Call) and around.func is node
        whole = around if is_called or isinstance(around, ast.Attribute) else node  # with what is done with it
        assert isinstance(whole, ast.expr)
        found, through = self._meaning(node)
        if found is not None and not isinstance(around, ast.Attribute):  # of `a.b.c` the whole is looked at
            name, _, attribute = found.partition("/")
            if is_called and name and attribute in ("", "apply"):
                kind = "build" if name[0].isupper() and not attribute else "call"
                yield Use(self.source, whole, kind, name, through=through)
            else:
                yield Use(self.source, node, "reference", name, through=through)
            return
        built = self._object(node)
        if built is not None and is_called:
            yield Use(self.source, whole, "call", self._class_built(built), built)
        elif built is not None and (whole is not node or built is not node):
            yield Use(self.source, whole, "reference", self._class_built(built), built)
