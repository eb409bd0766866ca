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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

from .tree import Scope, Source, Tree

_STAR = "import *"
_LOOKS = 9  # at every file: names that are handed on under other names are followed for so long
Progress = Callable[[int, int], None]  # told how many files are done, and how many there are


def _silent(done: int, total: int) -> None:
    pass


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

    copy:  its path
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

    copy: str
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


def find_uses(tree: Tree, copy: str, names: Collection[str], progress: Progress = _silent) -> list[Use]:
    """Every use of one copy; see `find_uses_of_each`."""
    return find_uses_of_each(tree, {copy: names}, progress)


def find_uses_of_each(tree: Tree, copies: Mapping[str, Collection[str]], progress: Progress = _silent) -> list[Use]:
    """Every use of some copies outside of their own files, in order of file and line.

    copies: the path of each in the tree, where it need not exist any more; and what it defines, which a star imports.

    A file that may use a copy and cannot be read is in `tree.unread`.
    """
    paths = _Paths(tree, copies)
    mentioning = _Mentioning(tree, progress)
    uses: dict[str, list[Use]] = {}
    importing: dict[str, set[str]] = {}  # files, by what they import
    mentioning.look_for({path.rpartition("/")[2] for path in paths.known} | {_STAR})
    waiting = mentioning.files(_STAR)
    for copy, names in copies.items():
        for word in (module_path(copy).rpartition("/")[2], *(names if copy.endswith("__init__.py") else ())):
            waiting |= mentioning.files(word)
    while waiting:
        start = len(paths.added)
        for path in sorted(waiting):
            uses[path] = _uses_in(tree, path, paths, importing)
        waiting = set()
        handed_on = paths.added[start:]
        mentioning.look_for({path.rpartition("/")[2] for path in handed_on})
        for path in handed_on:
            waiting |= mentioning.files(path.rpartition("/")[2]) - uses.keys()
            for parent in _above(path):
                waiting |= importing.get(parent, set())
    every = [use for some in uses.values() for use in some]
    return sorted(every, key=lambda use: (use.source.path, *position(use.node)))


class _Mentioning:
    """The files of a tree in which a word stands. A look at them is for several words: reading is what takes time."""

    def __init__(self, tree: Tree, progress: Progress) -> None:
        self.tree, self.progress = tree, progress
        self._files: dict[str, set[str]] = {}  # by word
        self._looks = 0

    def look_for(self, words: Collection[str]) -> None:
        """Find the files for words that are new."""
        new = {word: os.fsencode(word) for word in words if word not in self._files}
        if not new or self._looks == _LOOKS:
            return
        self._looks += 1
        self._files |= {word: set() for word in new}
        for done, path in enumerate(self.tree.files):
            self.progress(done, len(self.tree.files))
            content = self.tree.content(path) or b""
            for word, encoded in new.items():
                if encoded in content:
                    self._files[word].add(path)

    def files(self, word: str) -> set[str]:
        """Those of a word that was looked for."""
        return set(self._files.get(word, ()))


def _uses_in(tree: Tree, path: str, paths: "_Paths", importing: dict[str, set[str]]) -> list[Use]:
    source = None if path in paths.copies else tree.source(path)
    if source is None:
        return []
    file = _File(source, paths)
    try:
        uses = file.uses()
        if uses:
            ast.unparse(source.tree)  # as those who look at uses do with parts of it
    except RecursionError:
        tree.give_up(path, "nested too deeply")
        return []
    for imported in file.imported:
        importing.setdefault(imported, set()).add(path)
    return uses


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


def _above(path: str) -> Iterator[str]:
    """A path, and each folder above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]


class _Meaning(NamedTuple):
    """What a path means: a copy, its name for it, with attributes behind it, and the module that hands it on."""

    copy: str
    name: str  # "" for the copy's module
    through: str = ""


class _Paths:
    """What an import leads to, as a path in the tree (`package/module/name`), and which paths mean a copy's names."""

    def __init__(self, tree: Tree, copies: Mapping[str, Collection[str]]) -> None:
        self.copies = copies
        self.known: dict[str, tuple[str, str]] = {}  # path -> the copy, and its name there, "" for its module
        self.added: list[str] = []  # of these, the names that other modules hand on
        self._inside: dict[str, set[str]] = {}  # module -> names of known paths
        self._leading: set[str] = set()  # to known paths
        for copy, names in copies.items():
            module = module_path(copy)
            self._know(module, copy, "")
            for name in names:
                self._know(_join(module, name), copy, name)
        self._modules: set[str] = set()
        for path in (*tree.files, *copies):
            self._modules |= {*_above(module_path(path))}
        self._packages = {path.rpartition("/")[0] for path in tree.files if path.endswith("__init__.py")}
        self._homes = {self._home(copy) for copy in copies}

    def _know(self, path: str, copy: str, name: str) -> None:
        self.known[path] = (copy, name)
        parent, _, last = path.rpartition("/")
        self._inside.setdefault(parent, set()).add(last)
        self._leading |= {*_above(parent)}

    def hand_on(self, module: str, local: str, meaning: _Meaning) -> None:
        """Note that a module has a name of a copy, by whatever name."""
        path = _join(module, local)
        if path not in self.known:
            self._know(path, meaning.copy, meaning.name)
            self.added.append(path)

    def leads_on(self, path: str) -> bool:
        """Whether a known path begins so."""
        return path in self._leading

    def _home(self, copy: str) -> str:
        """The folder above a copy's outermost package."""
        home = module_path(copy).rpartition("/")[0]
        while home and home in self._packages:
            home = home.rpartition("/")[0]
        return home

    def find(self, file: str, dotted: str, level: int = 0) -> str:
        """The module that an import in a file names; "" for what lies outside of the tree."""
        path = dotted.replace(".", "/")
        folders = file.split("/")[:-1]
        if level:
            is_inside = level <= len(folders) + 1
            return _join(*folders[: len(folders) - level + 1], path) if is_inside else ""
        # the nearest folder that has it: a tree may hold several checkouts of one project, and each imports its own
        above = ["/".join(folders[:end]) for end in range(len(folders), -1, -1)]
        places = []
        for folder in above:
            if folder not in self._packages:
                places += [folder, _join(folder, "src")]
        first = path.partition("/")[0]
        for place in (*places, *sorted(self._homes), *above):  # a script in a package finds what lies beside it
            if _join(place, first) in self._modules:
                return _join(place, path)
        return ""

    def imported(self, file: str, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str, str]]:
        """What an import makes known: a name, the path of that name, and the path of what is imported."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = self.find(file, alias.name)
                if alias.asname:
                    yield alias.asname, path, path
                else:  # `import package.module` makes `package` known
                    first = alias.name.partition(".")[0]
                    yield first, self.find(file, first), path
            return
        module = self.find(file, node.module or "", node.level)
        if not module and not node.level:
            return
        for alias in node.names:
            names: Iterable[str] = [alias.name]
            if alias.name == "*":
                names = sorted(self._inside.get(module, ()))
            for name in names:
                yield alias.asname or name, _join(module, name), _join(module, name)

    def meaning(self, path: str) -> _Meaning | None:
        """What a path means; None for whatever has nothing to do with a copy."""
        known = path
        while known and known not in self.known:
            known = known.rpartition("/")[0]
        if not known:
            return None
        copy, name = self.known[known]
        rest = path[len(known) + 1 :]
        module = module_path(copy)
        if known == module and rest and _join(module, rest.partition("/")[0]) in self._modules:
            return None  # a module beside the `__init__`
        is_direct = known == module or known.rpartition("/")[0] == module
        return _Meaning(copy, _join(name, rest), "" if is_direct else known.rpartition("/")[0])


class _File:
    """One file: what its imports mean, and what it uses. What it hands on to files that import it becomes known."""

    def __init__(self, source: Source, paths: _Paths) -> None:
        self.source, self.paths = source, paths
        self.imported: set[str] = set()  # the paths of what it imports, and the modules that these are in
        self.spelled: dict[str, str] = {}  # names as they are written here, and the path of each
        self.built: dict[tuple[ast.AST, str], ast.Call] = {}  # by scope and name, by class and `self.name`

    def uses(self) -> list[Use]:
        """Every use, in no particular order."""
        found: list[Use] = []
        for statement in self.source.imports:
            found += self._import(statement)
        if not self.spelled:
            return found
        nodes = [node for node in ast.walk(self.source.tree) if isinstance(node, ast.expr)]
        for node in nodes:
            if isinstance(node, ast.Call) and self._class_built(node):
                self._follow_object(node)
        for node in nodes:
            found += self._use(node)
        return found

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Use]:
        meanings: dict[str, _Meaning] = {}
        if isinstance(node, ast.ImportFrom):
            self.imported.add(self.paths.find(self.source.path, node.module or "", node.level))
        for local, path, imported in self.paths.imported(self.source.path, node):
            self.imported.add(imported)
            meaning = self.paths.meaning(imported)
            if meaning is not None:
                meanings[local] = meaning
            if meaning is not None or self.paths.leads_on(path):
                self.spelled[local] = path
        here = module_path(self.source.path)
        for local, meaning in meanings.items():
            self.paths.hand_on(here, local, meaning)
        for copy in dict.fromkeys(meaning.copy for meaning in meanings.values()):
            own = {local: meaning for local, meaning in meanings.items() if meaning.copy == copy}
            bound = {local: meaning.name for local, meaning in own.items()}
            name = "*" if node.names[0].name == "*" else ", ".join(dict.fromkeys(bound.values()))
            through = [meaning.through for meaning in own.values()][-1]
            yield Use(copy, self.source, node, "import", name, bound=bound, through=through)

    def _meaning(self, node: ast.AST) -> _Meaning | None:
        """What a name, with the attributes behind it, means."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        path = self.spelled.get(node.id) if isinstance(node, ast.Name) else None
        return None if path is None else self.paths.meaning(_join(path, *reversed(attributes)))

    def _class_built(self, node: ast.Call) -> str:
        """The class of a copy that a call builds an object of."""
        meaning = self._meaning(node.func)
        is_class = meaning is not None and meaning.name[:1].isupper() and "/" not in meaning.name
        return meaning.name if meaning and is_class else ""

    def _follow_object(self, call: ast.Call) -> None:
        """Note the variable or attribute that an object is kept in."""
        around = self.source.parents[call]
        if isinstance(around, ast.IfExp):
            around = self.source.parents[around]
        targets: list[ast.expr] = []
        if isinstance(around, ast.Assign):
            targets = around.targets
        elif isinstance(around, ast.AnnAssign | ast.NamedExpr):
            targets = [around.target]
        for target in targets:
            if isinstance(target, ast.Name):
                self.built[self.source.nearest(target, Scope), target.id] = call
            elif is_of_self(target):
                self.built[self.source.nearest(target, ast.ClassDef), f"self.{target.attr}"] = call

    def _object(self, node: ast.expr) -> ast.Call | None:
        """The call that built the object that an expression is."""
        if isinstance(node, ast.Call):
            return node if self._class_built(node) else None
        if isinstance(node, ast.Name) and self.built:
            for scope in self.source.around(node):
                if (scope, node.id) in self.built:
                    return self.built[scope, node.id]
        elif is_of_self(node):
            own = self.source.nearest(node, ast.ClassDef)
            return self.built.get((own, f"self.{node.attr}")) or self.built.get((own, node.attr))
        return None

    def _use(self, node: ast.expr) -> Iterator[Use]:
        if not isinstance(node, ast.Call) and not isinstance(getattr(node, "ctx", None), ast.Load):
            return
        around = self.source.parents[node]
        is_called = isinstance(around, ast.Call) and around.func is node
        is_part = isinstance(around, ast.Attribute)  # of `a.b.c` the whole is looked at
        whole = around if isinstance(around, ast.expr) and (is_called or is_part) else node  # with what is done with it
        meaning = None if is_part else self._meaning(node)
        if meaning is not None:
            name, _, attributes = meaning.name.partition("/")
            kind = "reference"
            if is_called and name and attributes in ("", "apply"):
                node = whole
                kind = "build" if name[0].isupper() and not attributes else "call"
            yield Use(meaning.copy, self.source, node, kind, name, through=meaning.through)
            return
        built = self._object(node)
        if built is not None and (whole is not node or built is not node):
            of = self._meaning(built.func)
            assert of is not None
            kind = "call" if is_called else "reference"
            yield Use(of.copy, self.source, whole, kind, self._class_built(built), built)
