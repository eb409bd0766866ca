# SPDX-License-Identifier: MIT
"""Which files can move to the core. The adapter and the core work side by side, so each file moves by itself."""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import groupby

from ..catalog import Adapter
from ..repo.files import UnreadableError, read
from ..repo.tree import Tree
from ..repo.uses import Use, module_path
from .proof import File

_SUFFIXES = (".py", ".pyw", ".pyi", ".ipynb", ".toml", ".cfg")  # where a file may reach another one


def look_at_files(tree: Tree, uses: Sequence[Use], adapter: Adapter, changed: Collection[str] = ()) -> list[File]:
    """Every file that uses the copy, with what each use becomes, and why it stays where it does.

    changed: definitions of the copy that are not the original's.
    """
    files = [File(list(own), adapter, changed) for _, own in groupby(uses, key=lambda use: use.source.path)]
    modules = {file: module_path(file.source.path) for file in files}
    for use in uses:
        place = f"{use.source.path}:{use.node.lineno}"
        if use.through:
            giving = [file for file in files if modules[file] == use.through]
            _stay(giving, f"{place} takes names of the copy from here")
    for file in files:
        place = f"{file.source.path}:{file.uses[0].node.lineno}"
        if all(use.kind != "import" for use in file.uses):
            _stay(files, f"{place} reaches the copy through its package, without an import of its own")
        if not file.is_proven and any(use.kind == "reference" and use.name == "AllGather" for use in file.uses):
            _stay([one for one in files if one.holders], f"{file.source.path} uses the class itself")
    if any(file.is_proven for file in files):
        _look_at_texts(tree, [file for file in files if file.is_proven], uses[0].copy)
    return files


def _stay(files: list[File], why: str) -> None:
    for file in files:
        if file.is_proven:
            file.stays = f"{why}; change that first"


def _look_at_texts(tree: Tree, files: list[File], copy: str) -> None:
    """Other files that may reach what is moved: its gathers, its names, the copy as an attribute of its package."""
    modules = {file: module_path(file.source.path).rpartition("/")[2] for file in files}
    package = module_path(copy).split("/")[-2:]
    bound = [name for file in files for use in file.uses for name in use.bound]
    held = [name for file in files for name in file.holders]
    spelled = {package[-1], "is_distributed", "all_reduce_grads", *bound, *held}
    words = [word.encode() for word in spelled]
    holders = "|".join(dict.fromkeys(held)) or "(?!)"
    names = "|".join(dict.fromkeys(bound))
    form = re.compile(
        # not torch's collectives, nor a tensor's `gather(-1, index)`
        rf"(?<!\bdist)(?<!\bdistributed)\.(?P<holder>{holders})\b(?!\(\s*-?\d)"
        rf"|\b(?P<module>{'|'.join(map(re.escape, modules.values()))})(?:\.|\s+import\b[^\n;]*?\b)(?:{names})\b"
        r"|(?:(?<!\bself)\.|['\"])(?P<flag>is_distributed|all_reduce_grads)\b"
        rf"|(?<!import )(?<!from )\b(?P<package>{re.escape('.'.join(package)) if len(package) > 1 else '(?!)'})\b"
    )
    for path in tree.tracked:
        if path == copy or not path.endswith(_SUFFIXES):
            continue
        content: bytes | None = b""
        with suppress(UnreadableError):  # a submodule, or data; of the tree is what a sparse checkout leaves out
            content = tree.content(path) if path in tree.absent else read(tree.root / path)
        is_likely = content and any(word in content for word in words)  # the expression takes its time
        text = content.decode(errors="replace") if content and is_likely else ""
        for hit in form.finditer(text):
            for file in [file for file in files if file.source.path != path and not file.stays]:
                flag = hit["flag"] if file.holders else None
                if hit["holder"] in file.holders or hit["module"] == modules[file] or flag or hit["package"]:
                    place = f"{path}:{text.count(chr(10), 0, hit.start()) + 1}"
                    file.stays = f"{place} may reach what is moved here by `{hit[0]}`; change or rename one of the two"
