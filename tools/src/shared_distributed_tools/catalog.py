# SPDX-License-Identifier: MIT
"""The adapters, and where each one lives downstream: every package with a `contract.json` is one."""

import json
from dataclasses import dataclass
from pathlib import Path

from .errors import ToolError

CORE_FOLDER = "shared/distributed"
_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Adapter:
    """One adapter. Paths are relative, with forward slashes."""

    name: str
    downstream: str  # the project that it is made for
    target: str  # the file that it replaces there
    flat_beside: str | None = None  # forks without a package keep `distributed.py` beside this module

    @property
    def folder(self) -> str:
        """Its project in the sources."""
        return f"packages/{self.name}"

    @property
    def source(self) -> str:
        """Its one module in the sources."""
        return f"{self.folder}/src/{self.name.replace('-', '_')}_distributed/__init__.py"


def root() -> Path:
    """The tree that holds the sources: carried inside this package, else the checkout around it."""
    for candidate in (_HERE / "_sources", *_HERE.parents[2:3]):
        if (candidate / CORE_FOLDER / "pyproject.toml").is_file():
            return candidate
    msg = f"{_HERE} carries no sources to render from; install shared-distributed-tools again, from its wheel"
    raise ToolError(msg)


def _load(contract: Path) -> Adapter:
    said = json.loads(contract.read_text(encoding="utf-8"))
    return Adapter(contract.parent.name, said["downstream"], said["replaces"], said["flat_beside"])


ADAPTERS = {contract.parent.name: _load(contract) for contract in sorted(root().glob("packages/*/contract.json"))}


def adapter_named(name: str) -> Adapter:
    """The adapter of that name; ToolError with the names there are."""
    if name not in ADAPTERS:
        msg = f"no adapter is called {name!r}; there are {', '.join(ADAPTERS)}"
        raise ToolError(msg)
    return ADAPTERS[name]
