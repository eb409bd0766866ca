# SPDX-License-Identifier: MIT
"""Where a tree imports and uses the names of its copy. Reads with `ast`, and never imports the code.

A name reaches a file through an import of the copy, or of a module that imported it from there. From
then on it is followed by Python's own rules of scope, through `self.gather = AllGather(…)` and
`gather = AllGather(…)` to the calls of that object.
"""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple, TypeGuard

from .syntax import SCOPES, absolute_names, around_scope, assigned_calls, bound_names, in_scope, module_path, walk_scope
from .tree import Source, SourceTree


class Site(NamedTuple):
    """One place where a tree imports or uses a name of its copy."""

    path: str  # relative to the tree, with forward slashes
    line: int
    kind: str  # "import"; "build": a module object made; "call": of a function, an `apply`, an object; "reference"
    name: str  # as the copy calls it; "*" for a star import, "" for the copy's module itself
    text: str  # the line, stripped


@dataclass(frozen=True, eq=False)
class Use:
    """A site together with its place in the syntax tree."""

    source: Source
    node: ast.Import | ast.ImportFrom | ast.expr
    kind: str
    name: str
    local: str = ""  # imports: the name that it makes here
    owner: ast.Call | None = None  # the call that built the object which is used here
    direct: bool = True  # imports: from the copy itself, and not through another module

    @property
    def site(self) -> Site:
        """The site alone."""
        return Site(self.source.path, self.node.lineno, self.kind, self.name, self.source.line(self.node.lineno))


def find_uses(tree: SourceTree, copy: str, names: Collection[str]) -> list[Use]:
    """Every import of a copy and every use of its names in the tree around it, in order.

    copy: its path in the tree; it need not exist (any more).
    names: what the copy defines: what a star import brings, and what an inlined copy's own file uses.

    Files that do not parse are left out; `tree.broken()` names them.
    """
    packages = {path.rpartition("/")[0] for path in tree.contents if path.endswith("/__init__.py")}
    exporters = [_Exporter(copy, None, *absolute_names(copy, packages))]
    walks: list[_Walk] = []
    for _ in range(len(tree.contents) + 1):  # every round but the last adds a file that hands names on
        walks = list(_walks(tree, copy, names, exporters))
        grown = exporters[:1] + [
            _Exporter(walk.source.path, walk.exports, *absolute_names(walk.source.path, packages))
            for walk in walks
            if walk.exports and not walk.is_copy
        ]
        if grown == exporters:
            break
        exporters = grown
    uses = [use for walk in walks for use in walk.uses]
    return sorted(uses, key=lambda use: (use.source.path, use.node.lineno, use.node.col_offset, use.name))


def _walks(tree: SourceTree, copy: str, names: Collection[str], exporters: "list[_Exporter]") -> "Iterator[_Walk]":
    for path, content in tree.contents.items():
        if path != copy and not any(exporter.may_be_in(content) for exporter in exporters):
            continue
        source = tree.source(path)
        try:
            if source is not None:
                yield _Walk(source, exporters, names, is_copy=path == copy)
        except RecursionError:
            tree.give_up(path, "nested too deeply")


class Built(NamedTuple):
    """An object made from a class of the copy."""

    name: str  # of the class
    call: ast.Call


@dataclass(frozen=True)
class _Exporter:
    """A module that other files get the copy's names from: the copy itself, or one that imports them."""

    path: str
    handed_on: dict[str, str] | None  # its name -> the copy's; None: the copy, which has them all
    names: set[str]  # see `absolute_names`
    home: str

    def may_be_in(self, content: bytes) -> bool:
        """Whether a file could import it at all: cheap, and asked before the file is parsed."""
        module = module_path(self.path).rpartition("/")[2]
        words = [module, *(self.handed_on or [])]
        return any(word.encode() in content for word in words) or b"import *" in content


@dataclass(eq=False)
class _Frame:
    """A scope on the way to a node: what it binds, and what of that is the copy's."""

    bound: set[str]
    is_class: bool = False
    ours: dict[str, str] = field(default_factory=dict)  # local name -> the copy's; "" for its module
    objects: dict[str, Built] = field(default_factory=dict)
    imports: list[Use] = field(default_factory=list)


class _Walk:
    """One file's uses, and what it hands on to files that import it."""

    def __init__(self, source: Source, exporters: list[_Exporter], names: Collection[str], *, is_copy: bool) -> None:
        self.source, self.names, self.is_copy = source, names, is_copy
        self.exporters = [exporter for exporter in exporters if exporter.path != source.path]
        self.uses: list[Use] = []
        self.frames: list[_Frame] = []
        self.built: list[dict[str, Built]] = []  # attributes of self, for each class around
        self.exports: dict[str, str] = {}
        if is_copy or any(self._imports_ours(node) for node in source.imports):  # most files of a tree do not
            top = self._enter(source.tree)
            self.exports = {local: name for local, name in top.ours.items() if name}

    # ---------------------------------------------------------------- scopes

    def _enter(self, scope: ast.AST) -> _Frame:
        frame = self._push(scope)
        self.uses += frame.imports
        if isinstance(scope, ast.ClassDef):
            self.built.append(self._attributes(scope))
        for node in in_scope(scope):
            if not self._is_of_the_copy(scope, node):
                self._visit(node)
        if isinstance(scope, ast.ClassDef):
            self.built.pop()
        return self.frames.pop()

    def _push(self, scope: ast.AST) -> _Frame:
        frame = _Frame(bound_names(scope), isinstance(scope, ast.ClassDef))
        if self.is_copy and isinstance(scope, ast.Module):
            frame.ours = {name: name for name in self.names if name in frame.bound}
        self.frames.append(frame)
        for node in walk_scope(scope):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node, frame)
        for target, call in assigned_calls(scope):
            built = self._built(call)
            if isinstance(target, ast.Name) and built:
                frame.objects[target.id] = built
        return frame

    def _is_of_the_copy(self, scope: ast.AST, node: ast.AST) -> bool:
        """Whether a statement is one of the copy's own definitions: what it uses is no call site."""
        if not (self.is_copy and isinstance(scope, ast.Module)):
            return False
        made = {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
        if isinstance(node, ast.Assign):
            made = {target.id for target in node.targets if isinstance(target, ast.Name)}
        return bool(made & set(self.names))

    def _attributes(self, scope: ast.ClassDef) -> dict[str, Built]:
        """The objects that a class's methods keep in `self`."""
        found: dict[str, Built] = {}
        for method in scope.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                self._push(method)  # it may import what it builds
                for target, call in assigned_calls(method):
                    built = self._built(call)
                    if _is_of_self(target) and built:
                        found[target.attr] = built
                self.frames.pop()
        return found

    def _lookup(self, name: str) -> tuple[str | None, Built | None]:
        """What a name is here: the copy's name for it, or an object, or neither."""
        for depth, frame in enumerate(reversed(self.frames)):
            if frame.is_class and depth:
                continue
            if name in frame.ours:
                return frame.ours[name], None
            if name in frame.objects:
                return None, frame.objects[name]
            if name.partition(".")[0] in frame.bound:
                return None, None
        return None, None

    def _name_of(self, node: ast.expr) -> str | None:
        """The copy's name for an expression: `AllGather`, `distributed.AllGather`; "" for the module."""
        if isinstance(node, ast.Name):
            return self._lookup(node.id)[0]
        if not isinstance(node, ast.Attribute):
            return None
        if self._name_of(node.value) == "":
            return node.attr
        chain = _chain(node)
        return self._lookup(chain)[0] if chain else None

    def _built(self, call: ast.Call) -> Built | None:
        """The object that a call makes, if it makes one."""
        name = self._name_of(call.func) or ""
        return Built(name, call) if name[:1].isupper() else None

    def _object(self, node: ast.expr) -> Built | None:
        """The object that an expression stands for."""
        if isinstance(node, ast.Call):
            return self._built(node)
        if isinstance(node, ast.Name):
            return self._lookup(node.id)[1]
        if _is_of_self(node) and self.built:
            return self.built[-1].get(node.attr)
        return None

    # ---------------------------------------------------------------- imports

    def _import(self, node: ast.Import | ast.ImportFrom, frame: _Frame) -> None:
        for alias in node.names:
            frame.ours.pop(alias.asname or alias.name, None)  # the last import of a name counts
        for exporter in self.exporters:
            is_copy = exporter.handed_on is None
            for alias in node.names:
                local = alias.asname or alias.name
                if isinstance(node, ast.Import):
                    if is_copy and self._means(exporter, alias.name, 0):
                        self._bind(node, frame, local, "")
                    continue
                dotted = node.module or ""
                if self._means(exporter, dotted, node.level):
                    self._import_name(node, frame, exporter, alias.name, local)
                elif is_copy and self._means(exporter, f"{dotted}.{alias.name}".lstrip("."), node.level):
                    self._bind(node, frame, local, "")

    def _imports_ours(self, node: ast.Import | ast.ImportFrom) -> bool:
        frame = _Frame(set())
        self._import(node, frame)
        return bool(frame.imports)

    def _import_name(self, node: ast.ImportFrom, frame: _Frame, exporter: _Exporter, name: str, local: str) -> None:
        direct = exporter.handed_on is None
        if name == "*":
            brought = {own: own for own in self.names} if exporter.handed_on is None else exporter.handed_on
            frame.ours.update(brought)
            frame.bound |= set(brought)
            frame.imports.append(Use(self.source, node, "import", "*", "*", direct=direct))
        elif exporter.handed_on is None:
            self._bind(node, frame, local, name)
        elif name in exporter.handed_on:
            self._bind(node, frame, local, exporter.handed_on[name], direct=False)

    def _bind(
        self, node: ast.Import | ast.ImportFrom, frame: _Frame, local: str, name: str, *, direct: bool = True
    ) -> None:
        frame.ours[local] = name
        frame.imports.append(Use(self.source, node, "import", name, local, direct=direct))

    def _means(self, exporter: _Exporter, dotted: str, level: int) -> bool:
        """Whether an import in this file means the module of another file."""
        here = PurePosixPath(self.source.path).parent
        wanted = module_path(exporter.path)
        for _ in range(level - 1):
            here = here.parent
        if level:
            return (here / dotted.replace(".", "/")).as_posix() == wanted
        if dotted in exporter.names and f"{self.source.path}/".startswith(f"{exporter.home}/" if exporter.home else ""):
            return True
        return "." not in dotted and (here / dotted).as_posix() == wanted  # a script finds what lies beside it

    # ---------------------------------------------------------------- uses

    def _add(self, node: ast.expr, kind: str, name: str, owner: ast.Call | None = None) -> None:
        self.uses.append(Use(self.source, node, kind, name, owner=owner))

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, SCOPES):
            for part in around_scope(node):
                self._visit(part)
            self._enter(node)
        elif isinstance(node, ast.Call) and self._call(node):
            for part in [*node.args, *node.keywords]:
                self._visit(part)
        elif isinstance(node, ast.expr) and self._reference(node):
            pass
        else:
            for child in ast.iter_child_nodes(node):
                self._visit(child)

    def _call(self, node: ast.Call) -> bool:
        """A call of the copy's: recorded, and said so."""
        name = self._name_of(node.func)
        if name:
            self._add(node, "build" if name[:1].isupper() else "call", name)
            return True
        if isinstance(node.func, ast.Attribute) and node.func.attr == "apply":
            name = self._name_of(node.func.value)
            if name:
                self._add(node, "call", name)
                return True
        built = self._object(node.func)
        if built is None:
            return False
        if built.call is node.func:
            self._visit(built.call)
        self._add(node, "call", built.name, built.call)
        return True

    def _reference(self, node: ast.expr) -> bool:
        """A name of the copy's, or an object made from one, that is not called."""
        if isinstance(node, ast.Call) or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return False
        name = self._name_of(node)
        if name is not None:
            self._add(node, "reference", name)
            return True
        built = self._object(node.value) if isinstance(node, ast.Attribute) else None
        built = built or self._object(node)
        if built is not None:
            self._add(node, "reference", built.name, built.call)
        return built is not None


def _is_of_self(node: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _chain(node: ast.expr) -> str:
    """`a.b.c` as text; nothing for other expressions."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
