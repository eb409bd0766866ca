# SPDX-License-Identifier: MIT
"""Which files can move to the core. The adapter and the core work side by side, so each file moves by itself."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby

from ..catalog import Adapter
from ..repo.files import UnreadableError, read
from ..repo.tree import Tree
from ..repo.uses import Use, is_of_self, module_path
from .proof import LACKING, File

_PYTHON = (".py", ".pyw", ".pyi", ".ipynb", ".toml", ".cfg")  # where a name that is gone breaks something


def look_at_files(tree: Tree, uses: Sequence[Use], adapter: Adapter) -> list[File]:
    """Every file that uses the copy, with what each use becomes, and why it stays where it does."""
    files = [File(list(own), adapter) for _, own in groupby(uses, key=lambda use: use.source.path)]
    proven = [file for file in files if file.is_proven]
    blocking = [place for file in files if not file.is_proven for place in _other_ways(file)]
    texts = dict(texts_of(tree, _PYTHON)) if proven else {}
    for file in proven:
        others = {path: text for path, text in texts.items() if path != file.source.path}
        if module_path(file.source.path) in {use.through for use in uses} or _is_handed_on(file, others):
            file.stays = "other files take the copy's names from here; import them from the copy there"
        elif blocking:
            file.stays = f"{blocking[0]} uses the class itself, or attributes that the core's lacks; change that first"
        else:
            place = next(_reached_from(file, others), "")
            file.stays = f"{place} may be the gather that is kept here; rename one of them" if place else ""
    return files


def texts_of(tree: Tree, suffixes: tuple[str, ...] = ("",)) -> Iterator[tuple[str, str]]:
    """Every file that git tracks in a folder, or whose name ends so; without git, the Python files."""
    for name in tree.tracked:
        if name.endswith(suffixes) and not (tree.root / name).is_symlink():
            with suppress(UnreadableError):  # a submodule, or data
                # the tree also has what a sparse checkout leaves out
                content = tree.content(name) if name in tree.absent else read(tree.root / name)
                yield name, (content or b"").decode(errors="replace")


def mentions(texts: Iterable[tuple[str, str]], copy: str) -> Iterator[tuple[str, bool]]:
    """Lines that name the copy's module, in dotted form or as a path; and whether they are Python's."""
    *parents, name = module_path(copy).split("/")
    before = [r"\bfrom\s*\.+\s*(?:import\b[^\n]*\b)?", r"['\"]\.+"]
    if parents:
        before += [rf"\b{parents[-1]}(?:\s*[./]\s*|\s+import\b[^\n]*\b)"]
    else:  # a word of its own, which prose has too
        before += [r"^\s*(?:from|import)\s+", rf"['\"](?={name}(?:[.:]\w+)*['\"])", rf"(?<![\w/.])(?={name}\.py\b)"]
    form = re.compile(rf"(?:{'|'.join(before)}){name}\b", re.MULTILINE)
    for path, text in texts:
        for hit in form.finditer(text) if path != copy else ():
            line = text.count("\n", 0, hit.start()) + 1
            is_python = path.endswith(_PYTHON) or text.startswith("#!")
            yield f"{path}:{line}: {text.split(chr(10))[line - 1].strip()}", is_python


def _is_handed_on(file: File, others: dict[str, str]) -> bool:
    """Whether another file takes the copy's names from a file, in a string, a notebook or a stub."""
    module = module_path(file.source.path).rpartition("/")[2]
    names = "|".join(name for use in file.uses for name in use.bound)
    form = re.compile(rf"\b{module}(?:\.|\s+import\b[^\n;]*?\b)(?:{names})\b")
    return any(form.search(text) for text in others.values())


def _other_ways(file: File) -> Iterator[str]:
    """Where a file that stays would notice that an object is the core's."""
    is_class = {use.node: use.owner is None and use.name[:1].isupper() for use in file.uses if use.kind == "reference"}
    own = {use.node for use in file.uses if use.owner is not None}
    for node in ast.walk(file.tree):
        is_lacking = isinstance(node, ast.Attribute) and node.attr in LACKING and not is_of_self(node)
        if isinstance(node, ast.expr) and (is_class.get(node) or (is_lacking and node not in own)):
            yield f"{file.source.path}:{node.lineno}"


def _reached_from(file: File, others: dict[str, str]) -> Iterator[str]:
    """Places that may mean the gather which a file keeps in `self.name`: each `.name` that is not clearly another."""
    names = "|".join(file.holders) or "(?!)"
    known = {getattr(use.node, part, use.node) for use in file.uses for part in ("func", "value")}
    # but not torch's collectives, nor a tensor's `gather(-1, index)`
    form = re.compile(rf"(?<![\w)\]])(?!dist\b|distributed\b)([\w)\]]+)\.({names})\b(?!\(\s*-?\d)(\s*=[^=])?")
    for node in [one for one in ast.walk(file.tree) if isinstance(one, ast.Attribute) and one.attr in file.holders]:
        is_kept = is_of_self(node) and not isinstance(node.ctx, ast.Load)
        if node not in known and not is_kept and form.search(ast.unparse(file.source.parents[node])):
            yield f"{file.source.path}:{node.lineno}"
    for path, text in others.items():
        hits = list(form.finditer(text))
        bound = {hit[2] for hit in hits if hit[1] == "self" and hit[3]}  # by a class of that file
        for hit in hits:
            is_own = hit[1] == "self" and hit[2] in bound and not any(name in text for name in file.holders[hit[2]])
            if not is_own:
                yield f"{path}:{text.count(chr(10), 0, hit.start()) + 1}"
