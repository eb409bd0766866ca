# SPDX-License-Identifier: MIT
"""The rooms of the tools: imports between them point one way."""

import ast
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools/src/shared_distributed_tools"

# a room imports only from those that stand before it
ORDER = [
    *("errors", "terminal", "catalog", "repo", "render", "scan", "vendor", "migrate", "ranks", "parity"),
    *("list", "new", "cli", "__main__"),
]
# inside a room: a module imports only from those that stand before it
INSIDE = {
    "repo": ["files", "git", "changes", "dependencies", "tree", "uses"],
    "render": ["shim", "sources", "verify", "bundle", "header", "__init__", "released", "command"],
    "scan": ["fingerprint", "compare", "relatives", "survey", "command"],
    "vendor": ["state", "content", "check", "update", "command"],
    "ranks": ["oracle", "rank", "world", "__init__"],
    "parity": ["cases", "load", "truth", "play", "verdict", "compare", "report", "command"],
    "migrate": ["proof", "to_core", "stages", "risks", "plan", "status", "command"],
}


def imported(path: Path) -> set[str]:
    """The modules of the tools that a file imports, with dots, from the top; wherever the import stands."""
    package = path.relative_to(TOOLS).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = [*base, *(node.module.split(".") if node.module else [])]
            names = [[*module, alias.name] for alias in node.names] if not node.module else [module]
            found |= {".".join(name) for name in names}
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("shared_distributed_tools") for alias in node.names), path
    return found


def test_every_room_has_its_place() -> None:
    """A new folder or module is put into the order, or this fails."""
    rooms = {path.name.removesuffix(".py") for path in TOOLS.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__pycache__"} <= set(ORDER)


def test_imports_between_rooms_point_one_way() -> None:
    """No room imports one that stands after it: no cycles, whoever imports whom."""
    for path in TOOLS.rglob("*.py"):
        room = path.relative_to(TOOLS).parts[0].removesuffix(".py")
        if room == "__init__":
            assert not imported(path)
            continue
        for module in imported(path):
            other = module.partition(".")[0]
            assert ORDER.index(other) <= ORDER.index(room), f"{path.relative_to(TOOLS)} imports {module}"


def test_imports_inside_a_room_point_one_way() -> None:
    """The same, module by module."""
    for room, order in INSIDE.items():
        for path in (TOOLS / room).rglob("*.py"):
            name = path.relative_to(TOOLS / room).parts[0].removesuffix(".py")
            assert name in order or name == "__init__", path
            for module in imported(path):
                first, _, rest = module.partition(".")
                inner = (rest.partition(".")[0] if rest else "__init__") if first == room else ""
                inner = inner if inner in order else "__init__" if inner else ""  # a name of the room itself
                if inner and inner != name:
                    assert order.index(inner) < order.index(name), f"{path.relative_to(TOOLS)} imports {module}"
