# SPDX-License-Identifier: MIT
"""Which files can move to the core. The adapter and the core work side by side, so each file moves by itself."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..catalog import Adapter
from ..repo.git import Checkout
from ..repo.tree import LARGEST, Source, Tree
from ..repo.uses import Use, class_of, is_of_self, module_path
from .proof import LACKING, File, bound_by, prove, times_kept

_PYTHON = (".py", ".pyw", ".pyi", ".ipynb", ".toml", ".cfg")  # where a name that is gone breaks something


class Mention(NamedTuple):
    """A line of a tracked file that names a module."""

    path: str
    line: int
    text: str
    is_python: bool


def look_at_files(tree: Tree, uses: Sequence[Use], adapter: Adapter) -> list[File]:
    """Every file that uses the copy, with what each use becomes, and why it stays where it does."""
    files: dict[str, File] = {}
    for use in uses:
        files.setdefault(use.source.path, File(use.source, [])).uses.append(use)
    for file in files.values():
        prove(file, adapter)
    through = {use.through for use in uses}
    blocking = [place for file in files.values() if not file.is_proven for place in _other_ways(file)]
    texts = dict(tracked_texts(tree.root)) if any(file.is_proven for file in files.values()) else {}
    for path, file in files.items():
        if file.is_proven and module_path(path) in through | set(_handed_on(file, texts)):
            file.stays = "other files take the copy's names from here; import them from the copy there"
        elif file.is_proven and blocking:
            file.stays = f"{blocking[0]} uses the class itself, or attributes that the core's lacks; change that first"
        elif file.is_proven:
            file.stays = next(_same_attribute(tree, file), "")
    return [files[path] for path in sorted(files)]


def moved(tree: Tree, file: File) -> bytes:
    """A file on the core, in its own encoding."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(tree.content(file.source.path) or b"").readline)
    return file.result.encode(encoding)


def tracked_texts(repo: Path) -> Iterator[tuple[str, str]]:
    """Every file that git tracks in a folder, as text."""
    checkout = Checkout.around(repo)
    for path in checkout.tracked() if checkout else ():
        if path.is_relative_to(repo) and path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST:
            yield path.relative_to(repo).as_posix(), path.read_bytes().decode(errors="replace")


def mentions(texts: dict[str, str], copy: str) -> list[Mention]:
    """Where the copy's module is named, in dotted form or as a path."""
    *parents, name = module_path(copy).split("/")
    quote = "['\"]"
    forms = [rf"\bfrom\s*\.+\s*{name}\b", rf"\bfrom\s*\.+\s*import\b[^\n]*\b{name}\b", rf"{quote}\.+{name}\b"]
    if parents:
        parent = parents[-1]
        forms += [rf"\b{parent}\s*[./]\s*{name}\b", rf"\b{parent}\s+import\b[^\n]*\b{name}\b"]
    else:  # a word of its own, which prose has too
        forms += [
            rf"(?m:^)\s*(?:from|import)\s+{name}\b",
            rf"{quote}{name}(?:[.:]\w+)*{quote}",
            rf"(?<![\w/.]){name}\.py\b",
        ]
    found = []
    for path, text in texts.items():
        is_python = path.endswith(_PYTHON) or text.startswith("#!")
        for hit in re.finditer("|".join(forms), text) if path != copy else ():
            start = text.count("\n", 0, hit.start()) + 1
            found.append(Mention(path, start, text.split("\n")[start - 1].strip(), is_python))
    return found


def _handed_on(file: File, texts: dict[str, str]) -> Iterator[str]:
    """The file's module, if another file's text takes the copy's names from it: in a string, a notebook, a stub."""
    module = module_path(file.source.path)
    names = "|".join(name for use in file.uses for name in use.bound)
    form = re.compile(rf"\b{module.rpartition('/')[2]}(?:\.|\s+import\b[^\n;]*?\b)(?:{names})\b")
    if any(form.search(text) for path, text in texts.items() if path != file.source.path and path.endswith(_PYTHON)):
        yield module


def _other_ways(file: File) -> Iterator[str]:
    """Where a file that stays would notice that an object is the core's."""
    own = {use.node for use in file.uses if use.owner is not None}
    classes = {
        use.node for use in file.uses if use.kind == "reference" and use.owner is None and use.name[:1].isupper()
    }
    for node in ast.walk(file.source.tree):
        is_lacking = isinstance(node, ast.Attribute) and node.attr in LACKING and not is_of_self(node)
        if isinstance(node, ast.expr) and (node in classes or (is_lacking and node not in own)):
            yield f"{file.source.path}:{node.lineno}"


def _same_attribute(tree: Tree, file: File) -> Iterator[str]:
    """Attributes called as those that hold a gather, where they may be that gather."""
    known = {
        one
        for use in file.uses
        for one in (use.node, getattr(use.node, "func", None), getattr(use.node, "value", None))
    }
    for path in tree.files if file.holders else ():
        content = tree.content(path) or b""
        source = file.source if path == file.source.path else None
        if source is None and any(name.encode() in content for name in file.holders):
            source = tree.source(path)
        for node in ast.walk(source.tree) if source else ():
            if isinstance(node, ast.Attribute) and node.attr in file.holders and node not in known and source:
                is_bound_here = source is file.source and class_of(source, node) in file.holders[node.attr]
                if not (is_bound_here and not isinstance(node.ctx, ast.Load)) and not _is_another(source, node, file):
                    yield f"{path}:{node.lineno} has a `.{node.attr}` that may be this file's gather; rename one"


def _is_another(source: Source, node: ast.Attribute, file: File) -> bool:
    """Whether `….name` cannot be the gather that a class of another file keeps under that name."""
    base: ast.AST = node
    while isinstance(base, ast.Attribute):
        base = base.value
    around, own = source.parents[node], class_of(source, node)
    if isinstance(base, ast.Name) and base.id in {name for one in source.imports for name in bound_by(one)}:
        return True
    if (
        isinstance(around, ast.Call)
        and around.args
        and isinstance(getattr(around.args[0], "operand", around.args[0]), ast.Constant)
    ):
        return True  # a tensor's own `gather(-1, index)`
    related = {
        ast.unparse(base).rpartition(".")[2]
        for one in (own, *file.holders[node.attr])
        for base in getattr(one, "bases", ())
    }
    names = {getattr(one, "name", "") for one in (own, *file.holders[node.attr])}
    return is_of_self(node) and isinstance(own, ast.ClassDef) and times_kept(own, node.attr) > 0 and not related & names
