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

from .tree import Scope, Source, Tree


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
        return Site(self.source.path, self.node.lineno, self.kind, self.name, self.source.lines[self.node.lineno])


def find_uses(tree: Tree, copy: str, names: Collection[str]) -> list[Use]:
    """Every use of a copy outside of its own file, in order of file and line.

    copy:  its path in the tree; it need not exist any more.
    names: what the copy defines: what a star import brings.

    A file that may use the copy and cannot be read is in `tree.unread`.
    """
    paths = _Paths(tree, copy, names)
    words = {module_path(copy).rpartition("/")[2], *(names if copy.endswith("__init__.py") else ())}
    uses: dict[str, list[Use]] = {}  # files without any are not kept in memory
    while words:  # once for the copy, and again for names that were found to be handed on
        before = set(paths.known)
        for path in tree.files:
            content = b"" if path == copy else tree.content(path) or b""
            is_likely = b"import *" in content or any(os.fsencode(word) in content for word in words)
            source = tree.source(path) if is_likely else None
            found = _File(source, paths).uses() if source else []
            try:
                if source and found:
                    ast.unparse(source.tree)  # as those who look at uses do with parts of it
                    uses[path] = found
            except RecursionError:
                tree.give_up(path, "nested too deeply")
        words = {path.rpartition("/")[2] for path in paths.known.keys() - before}
    every = [use for some in uses.values() for use in some]
    return sorted(every, key=lambda use: (use.source.path, *position(use.node)))


def module_path(path: str) -> str:
    """A file's path as its module has it: without `.py`, and without `__init__`."""
    bare = path.rpartition(".")[0]
    return bare.rpartition("/")[0] if bare.rpartition("/")[2] == "__init__" else bare


def position(node: ast.AST) -> tuple[int, ...]:
    """Where a node begins and ends."""
    return tuple(getattr(node, field, 0) or 0 for field in ("lineno", "col_offset", "end_lineno", "end_col_offset"))


def is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Whether a node is `self.name`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


class _Paths:
    """What an import leads to, as a path in the tree (`package/module/name`), and which paths mean the copy's names."""

    def __init__(self, tree: Tree, copy: str, names: Collection[str]) -> None:
        self.copy = module_path(copy)
        self.known = {self.copy: "", **{_join(self.copy, name): name for name in names}}  # "" for the module itself
        parts = [one.split("/") for one in {self.copy, *map(module_path, tree.files)}]
        self._modules = {"/".join(one[:end]) for one in parts for end in range(1, len(one) + 1)}
        self._packages = {path.rpartition("/")[0] for path in tree.files if path.endswith("__init__.py")}
        self._home = self.copy.rpartition("/")[0]  # the folder above the copy's outermost package
        while self._home and self._home in self._packages:
            self._home = self._home.rpartition("/")[0]

    def find(self, file: str, dotted: str, level: int = 0) -> str:
        """The module that an import in a file names; "" for what lies outside of the tree."""
        path = dotted.replace(".", "/")
        folders = file.split("/")[:-1]
        if level:
            return _join(*folders[: len(folders) - level + 1], path) if level <= len(folders) + 1 else ""
        # the nearest folder that has it: a tree may hold several checkouts of one project, and each imports its own
        above = ["/".join(folders[:end]) for end in range(len(folders), -1, -1)]
        outside_packages = [place for one in above if one not in self._packages for place in (one, _join(one, "src"))]
        for base in [*outside_packages, self._home, *above]:  # a script in a package finds what lies beside it
            if _join(base, path.partition("/")[0]) in self._modules:
                return _join(base, path)
        return ""

    def imported(self, file: str, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str, str]]:
        """What an import makes known: a name, the path of that name, and the path of what is imported."""
        if isinstance(node, ast.Import):  # `import package.module` makes `package` known
            for alias in node.names:
                path, first = self.find(file, alias.name), alias.name.partition(".")[0]
                yield (alias.asname, path, path) if alias.asname else (first, self.find(file, first), path)
            return
        module = self.find(file, node.module or "", node.level)
        every = [path.rpartition("/") for path in self.known if path != self.copy]
        for alias in node.names if module or node.level else ():
            star = [name for parent, _, name in every if parent == module]
            for name in star if alias.name == "*" else [alias.name]:
                yield alias.asname or name, _join(module, name), _join(module, name)

    def meaning(self, path: str) -> tuple[str, str] | None:
        """The copy's name for a path, with attributes behind it, and the module that hands it on, if one does.

        The name of the copy's module is "". None for whatever has nothing to do with the copy.
        """
        parts = path.split("/")
        ends = (end for end in range(len(parts), 0, -1) if "/".join(parts[:end]) in self.known)
        end = next(ends, 0)
        known, beside = "/".join(parts[:end]), "/".join(parts[: end + 1])
        if not end or (known == self.copy != beside and beside in self._modules):  # a module beside the `__init__`
            return None
        is_direct = f"{known}/".startswith(f"{self.copy}/")
        return _join(self.known[known], *parts[end:]), "" if is_direct else "/".join(parts[: end - 1])


class _File:
    """One file: what its imports mean, and what it uses. What it hands on to files that import it becomes known."""

    def __init__(self, source: Source, paths: _Paths) -> None:
        self.source, self.paths = source, paths
        self.spelled: dict[str, str] = {}  # names as they are written here, and the path of each
        self.built: dict[tuple[ast.AST, str], ast.Call] = {}  # by scope and name, by class and `self.name`

    def uses(self) -> list[Use]:
        """Every use, in no particular order."""
        imports = [use for node in self.source.imports for use in self._import(node)]
        nodes = list(ast.walk(self.source.tree)) if self.spelled else []
        for node in nodes:
            if isinstance(node, ast.Call) and self._class_built(node):
                self._follow_object(node)
        return imports + [use for node in nodes for use in self._use(node)]

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Use]:
        bound, through = {}, ""
        for local, path, imported in self.paths.imported(self.source.path, node):
            found = self.paths.meaning(imported)
            if found is not None:
                bound[local], through = found
            if found is not None or any(known.startswith(f"{path}/") for known in self.paths.known):
                self.spelled[local] = path
        here = module_path(self.source.path)
        self.paths.known |= {_join(here, local): name for local, name in bound.items()}
        if bound:
            name = "*" if node.names[0].name == "*" else ", ".join(dict.fromkeys(bound.values()))
            yield Use(self.source, node, "import", name, bound=bound, through=through)

    def _meaning(self, node: ast.AST) -> tuple[str, str] | None:
        """What a name, with the attributes behind it, means."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        path = self.spelled.get(node.id) if isinstance(node, ast.Name) else None
        return None if path is None else self.paths.meaning(_join(path, *reversed(attributes)))

    def _class_built(self, node: ast.Call) -> str:
        name, _ = self._meaning(node.func) or ("", "")
        return name if name[:1].isupper() and "/" not in name else ""

    def _follow_object(self, call: ast.Call) -> None:
        """Note the variable or attribute that an object is kept in."""
        around = self.source.parents[call]
        if isinstance(around, ast.IfExp):
            around = self.source.parents[around]
        targets = getattr(around, "targets", [getattr(around, "target", None)])
        for target in targets if isinstance(around, ast.Assign | ast.AnnAssign | ast.NamedExpr) else ():
            if isinstance(target, ast.Name):
                self.built[self.source.nearest(target, Scope), target.id] = call
            elif is_of_self(target):
                self.built[self.source.nearest(target, ast.ClassDef), f"self.{target.attr}"] = call

    def _object(self, node: ast.AST) -> ast.Call | None:
        """The call that built the object that an expression is."""
        if isinstance(node, ast.Call):
            return node if self._class_built(node) else None
        keys: list[tuple[ast.AST, str]] = []
        if isinstance(node, ast.Name) and self.built:
            keys = [(one, node.id) for one in self.source.around(node)]
        elif is_of_self(node):
            keys = [(self.source.nearest(node, ast.ClassDef), name) for name in (f"self.{node.attr}", node.attr)]
        return next((self.built[key] for key in keys if key in self.built), None)

    def _use(self, node: ast.AST) -> Iterator[Use]:
        is_read = isinstance(node, ast.Call) or isinstance(getattr(node, "ctx", None), ast.Load)
        if not isinstance(node, ast.expr) or not is_read:
            return
        around = self.source.parents[node]
        is_called = isinstance(around, ast.Call) and around.func is node
        is_part = isinstance(around, ast.Attribute)  # of `a.b.c` the whole is looked at
        whole = around if isinstance(around, ast.expr) and (is_called or is_part) else node  # with what is done with it
        found, built = None if is_part else self._meaning(node), self._object(node)
        if found is not None:
            name, _, attributes = found[0].partition("/")
            is_call = is_called and name and attributes in ("", "apply")
            kind = "reference" if not is_call else "build" if name[0].isupper() and not attributes else "call"
            yield Use(self.source, whole if is_call else node, kind, name, through=found[1])
        elif built is not None and (whole is not node or built is not node):
            yield Use(self.source, whole, "call" if is_called else "reference", self._class_built(built), built)
