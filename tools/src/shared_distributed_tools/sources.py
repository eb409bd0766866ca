# SPDX-License-Identifier: MIT
"""The text of the sources, and their version: the only input of a rendered file."""

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from .catalog import CORE, CORE_FOLDER, Adapter, root
from .errors import RenderError


@dataclass(frozen=True)
class Sources:
    """What one adapter is rendered from. Newlines are LF here, whatever the checkout has."""

    core: tuple[tuple[str, str], ...]  # (module name, text), sorted; the package itself is `__init__`
    adapter: str
    core_version: str
    adapter_version: str
    licence: str

    @property
    def sha256(self) -> str:
        """Covers every text and version above."""
        parts = [self.core_version, self.adapter_version, self.adapter, *(part for pair in self.core for part in pair)]
        # each part's own hash first: no two lists of parts run together into the same bytes
        return sha256("".join(sha256(part.encode()).hexdigest() for part in parts).encode()).hexdigest()


def load(adapter: Adapter) -> Sources:
    """Read the core and one adapter."""
    tree = root()
    package = tree / CORE_FOLDER / "src" / CORE
    return Sources(
        core=tuple((file.stem, file.read_text(encoding="utf-8")) for file in sorted(package.glob("*.py"))),
        adapter=(tree / adapter.source).read_text(encoding="utf-8"),
        core_version=core_version(),
        adapter_version=_version(tree / adapter.folder),
        licence=(tree / CORE_FOLDER / "LICENSE").read_text(encoding="utf-8"),
    )


def core_version() -> str:
    """The version of this release: all distributions have the same."""
    return _version(root() / CORE_FOLDER)


def _version(project: Path) -> str:
    # every project here gives it so, on a line of its own; the standard library reads TOML from Python 3.11 on only
    found = re.search(r'^version = "([^"]+)"$', (project / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        msg = f"{project.name}/pyproject.toml gives no version"
        raise RenderError(msg)
    return found[1]
