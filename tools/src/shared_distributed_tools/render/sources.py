# SPDX-License-Identifier: MIT
"""The text of the sources, their version and their revision: the only input of a rendered file."""

import re
from functools import cache
from pathlib import Path

from ..catalog import CORE, CORE_FOLDER, Adapter, root
from ..repo.git import revision_of


def load(adapter: Adapter) -> tuple[tuple[tuple[str, str], ...], str, str]:
    """The core's modules by name, the adapter and the licence. Newlines are LF, whatever the checkout has."""
    core = root() / CORE_FOLDER
    modules = [(file.stem, file.read_text(encoding="utf-8")) for file in sorted(core.glob(f"src/{CORE}/*.py"))]
    licence = (core / "LICENSE").read_text(encoding="utf-8")
    return tuple(modules), (root() / adapter.source).read_text(encoding="utf-8"), licence


def version() -> str:
    """The version of this release: all distributions have the same."""
    # every project here gives it so, on a line of its own; the standard library reads TOML from Python 3.11 on only
    manifest = (root() / CORE_FOLDER / "pyproject.toml").read_text(encoding="utf-8")
    (found,) = re.findall(r'^version = "([^"]+)"$', manifest, re.MULTILINE)
    return str(found)


def revision() -> str:
    """The commit that the sources are from, as the wheel carries it or as git has it."""
    return _revision(root())


@cache
def _revision(tree: Path) -> str:
    carried = tree / "REVISION"
    if carried.is_file():
        return carried.read_text(encoding="utf-8").strip()
    files = [*(tree / CORE_FOLDER / "src").rglob("*.py"), *tree.glob("packages/*/src/*/*.py")]
    return revision_of(tree, files)
