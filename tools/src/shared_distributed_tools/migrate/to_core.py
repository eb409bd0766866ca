# SPDX-License-Identifier: MIT
"""Which files can move to the core. The adapter and the core work side by side, so each file moves by itself."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ..catalog import Adapter
from ..repo.files import UnreadableError, read
from ..repo.git import Checkout
from ..repo.tree import Tree
from ..repo.uses import Use, is_of_self, module_path
from .proof import LACKING, File, Proof

_PYTHON = (".py", ".pyw", ".pyi", ".ipynb", ".toml", ".cfg")  # where a name that is gone breaks something


class Mention(NamedTuple):
    """A line of a file that names a module."""

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
        Proof(file, adapter)
    proven = [file for file in files.values() if file.is_proven]
    through = {use.through for use in uses}
    blocking = [place for file in files.values() if not file.is_proven for place in _other_ways(file)]
    texts = dict(texts_of(tree, _PYTHON)) if proven else {}
    for file in proven:
        others = {path: text for path, text in texts.items() if path != file.source.path}
        if module_path(file.source.path) in through or _is_handed_on(file, others):
            file.stays = "other files take the copy's names from here; import them from the copy there"
        elif blocking:
            file.stays = f"{blocking[0]} uses the class itself, or attributes that the core's lacks; change that first"
        else:
            place = next(_reached_from(file, others), "")
            file.stays = f"{place} may be the gather that is kept here; rename one of them" if place else ""
    return [files[path] for path in sorted(files)]


def moved(tree: Tree, file: File) -> bytes:
    """A file on the core, in its own encoding."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(tree.content(file.source.path) or b"").readline)
    return file.result.encode(encoding)


def texts_of(tree: Tree, suffixes: tuple[str, ...] = ("",)) -> Iterator[tuple[str, str]]:
    """Every file that git tracks in a folder, or whose name ends so; without git, the Python files."""
    checkout = Checkout.around(tree.root)
    known = set(tree.files)
    paths = checkout.tracked() if checkout else [tree.root / path for path in tree.files]
    for path in paths:
        if path.is_relative_to(tree.root) and path.name.endswith(suffixes) and not path.is_symlink():
            name = path.relative_to(tree.root).as_posix()
            with suppress(UnreadableError):  # a submodule, or data
                # the tree also has what a sparse checkout leaves out
                content = tree.content(name) if name in known else read(path)
                yield name, (content or b"").decode(errors="replace")


def mentions(texts: Iterable[tuple[str, str]], copy: str) -> list[Mention]:
    """Where the copy's module is named, in dotted form or as a path."""
    *parents, name = module_path(copy).split("/")
    forms = [rf"\bfrom\s*\.+\s*{name}\b", rf"\bfrom\s*\.+\s*import\b[^\n]*\b{name}\b", rf"['\"]\.+{name}\b"]
    if parents:
        forms += [rf"\b{parents[-1]}\s*[./]\s*{name}\b", rf"\b{parents[-1]}\s+import\b[^\n]*\b{name}\b"]
    else:  # a word of its own, which prose has too
        forms += [
            rf"(?m:^)\s*(?:from|import)\s+{name}\b",
            rf"['\"]{name}(?:[.:]\w+)*['\"]",
            rf"(?<![\w/.]){name}\.py\b",
        ]
    found = []
    for path, text in texts:
        for hit in re.finditer("|".join(forms), text) if path != copy else ():
            line = text.count("\n", 0, hit.start()) + 1
            is_python = path.endswith(_PYTHON) or text.startswith("#!")
            found.append(Mention(path, line, text.split("\n")[line - 1].strip(), is_python))
    return found


def _is_handed_on(file: File, others: dict[str, str]) -> bool:
    """Whether another file takes the copy's names from a file, be it in a string, a notebook or a stub."""
    module = module_path(file.source.path).rpartition("/")[2]
    names = "|".join(name for use in file.uses for name in use.bound)
    form = re.compile(rf"\b{module}(?:\.|\s+import\b[^\n;]*?\b)(?:{names})\b")
    return any(form.search(text) for text in others.values())


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


def _reached_from(file: File, others: dict[str, str]) -> Iterator[str]:
    """Places that may mean the gather which a file keeps in `self.name`: each `.name` that is not clearly another."""
    names = "|".join(file.holders) or "(?!)"
    known = {getattr(use.node, part, use.node) for use in file.uses for part in ("func", "value")}
    form = re.compile(
        rf"(?<![\w)\]])([\w)\]]+)\.({names})\b(?!\(\s*-?\d)(\s*=[^=])?"
    )  # but not a tensor's `gather(-1, index)`
    for node in ast.walk(file.source.tree):
        is_kept = is_of_self(node) and not isinstance(node.ctx, ast.Load)
        if isinstance(node, ast.Attribute) and node.attr in file.holders and node not in known and not is_kept:
            text = ast.unparse(file.source.parents[node])
            if form.search(text) and not text.startswith(("dist.", "torch.")):
                yield f"{file.source.path}:{node.lineno}"
    for path, text in others.items():
        hits = list(form.finditer(text))
        bound = {hit[2] for hit in hits if hit[1] == "self" and hit[3]}
        for hit in hits:
            is_own = hit[1] == "self" and hit[2] in bound and not any(name in text for name in file.holders[hit[2]])
            if not is_own and hit[1] not in ("dist", "distributed"):
                yield f"{path}:{text.count(chr(10), 0, hit.start()) + 1}"
