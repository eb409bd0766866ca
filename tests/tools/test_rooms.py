# SPDX-License-Identifier: MIT
"""The rooms of the tools: imports between them, and inside them, point one way."""

import ast
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools/src/shared_distributed_tools"

# a module imports only from those that stand before it; a room's own name is its `__init__`
ORDER = {
    "": "errors terminal catalog",
    "repo": "files git changes dependencies tree uses edits",
    "render": "shim sources verify bundle header __init__ released command",
    "scan": "fingerprint signatures compare sisters helpers relatives survey command",
    "vendor": "state content check update command",
    "migrate": "risks proof to_core stages plan status command",
    "ranks": "oracle rank world __init__",
    "parity": "cases load play verdict compare command",
    ".": "list new cli __main__",
}
MODULES = [f"{room}.{name}".strip(".").removesuffix(".__init__") for room in ORDER for name in ORDER[room].split()]


def imported(path: Path) -> set[str]:
    """The modules of the tools that a file imports, with dots, from the top; wherever the import stands."""
    package = path.relative_to(TOOLS).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            names = {".".join([*filter(None, module), alias.name]) for alias in node.names}
            found |= names & set(MODULES) or {".".join(filter(None, module))}
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("shared_distributed_tools") for alias in node.names), path
    return found


def test_imports_point_one_way() -> None:
    """No cycles, whoever imports whom. A new module is put into the order, or this fails."""
    for path in TOOLS.rglob("*.py"):
        parts = path.relative_to(TOOLS).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        before = MODULES[: MODULES.index(module)] if module in MODULES else []
        assert module in MODULES or not imported(path), module
        assert imported(path) <= set(before), f"{module} imports {imported(path) - set(before)}"
