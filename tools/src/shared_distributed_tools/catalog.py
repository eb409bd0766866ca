# SPDX-License-Identifier: MIT
"""The adapters, as their `contract.json` has them: every package with one is an adapter."""

import ast
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .errors import ToolError

# the core: what is imported, what is installed, its project in the sources
CORE, CORE_DISTRIBUTION, CORE_FOLDER = "shared_distributed", "shared-distributed", "shared/distributed"
_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Adapter:
    """One adapter. Paths are relative, with forward slashes."""

    name: str
    downstream: str  # the project that it is made for
    target: str  # the file that it replaces there
    flat_beside: str | None  # forks without a package keep `distributed.py` beside this module
    api: dict[str, Any]  # its names and their signatures
    alone: str  # what a gather does without other ranks: it returns its "input", it "gathers", it "raises"
    # what follows from these
    source: str  # its one module in the sources
    distribution: str  # what is installed
    module: str  # what is imported
    has_module: bool  # whether `AllGather` is an nn.Module; elsewhere it is an autograd Function
    sizes_may_be_none: bool  # whether the input comes back with None for the sizes where there are no other ranks
    asks_when_built: bool  # whether "are we distributed?" is answered once, when the module is built
    gathers: frozenset[str]  # the names whose calls, or whose objects' calls, give a tensor and the sizes

    @property
    def shared(self) -> set[str]:
        """The names that are the core's own."""
        return set(self.api) & core_names() & _imported(self.source)


def root() -> Path:
    """The tree that holds the sources: carried inside this package, else the checkout around it."""
    for candidate in (_HERE / "_sources", *_HERE.parents[2:3]):
        if (candidate / CORE_FOLDER / "pyproject.toml").is_file():
            return candidate
    msg = f"{_HERE} carries no sources to render from; install shared-distributed-tools again, from its wheel"
    raise ToolError(msg)


def _load(contract: Path) -> Adapter:
    said, name = json.loads(contract.read_text(encoding="utf-8")), contract.parent.name
    distribution, api = f"{name}-distributed", said["api"]
    module = distribution.replace("-", "_")
    has_module, returns_input = api["AllGather"][0].startswith("(self"), said["alone"] == "input"
    return Adapter(
        name,
        said["downstream"],
        said["replaces"],
        said["flat_beside"],
        api,
        said["alone"],
        source=f"packages/{name}/src/{module}/__init__.py",
        distribution=distribution,
        module=module,
        has_module=has_module,
        sizes_may_be_none=returns_input,
        asks_when_built=has_module and returns_input,
        gathers=frozenset({"AllGather", "AllGatherFunction", "all_gather"} & set(api)),
    )


ADAPTERS = {contract.parent.name: _load(contract) for contract in sorted(root().glob("packages/*/contract.json"))}


def core_names() -> set[str]:
    """What the core exports."""
    return _imported(f"{CORE_FOLDER}/src/{CORE}/__init__.py")


@cache
def _imported(path: str) -> set[str]:
    """What a module of the sources imports by name."""
    names = set()
    for node in ast.parse((root() / path).read_bytes()).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names
