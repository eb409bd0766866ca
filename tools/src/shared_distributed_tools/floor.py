# SPDX-License-Identifier: MIT
"""Where a project's metadata allows an older Python or torch than a vendored file needs. Reads only what is plain.

The first file that names a package decides, as for whoever installs the project. What is computed, conditional or
damaged says nothing: a note that is wrong would be worse than none.
"""

import ast
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from pathlib import Path
from typing import Any

import tomlkit
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from tomlkit.exceptions import TOMLKitError

from .errors import ToolError
from .files import read

NEEDED = {"python": Version("3.10"), "torch": Version("2.0")}
_DAMAGED = (TOMLKitError, ConfigParserError, SyntaxError, ValueError, AttributeError, TypeError, ToolError)

Asked = Iterator[tuple[str, str]]  # a package, and the versions of it as they are written


def allowed_too_old(repo: Path) -> list[str]:
    """Requirements that admit what is too old, with their file: `torch>=1.6 (setup.py)`."""
    asked: dict[str, tuple[str, str]] = {}
    for name, reader in _READERS:
        try:
            for package, versions in reader((read(repo / name) or b"").decode()):
                asked.setdefault(package, (versions, name))
        except _DAMAGED:
            continue
    return [
        f"{package}{versions} ({name})"
        for package, least in NEEDED.items()
        for versions, name in [asked.get(package, ("", ""))]
        if _is_below(versions, least)
    ]


def note(repo: Path, file: str) -> str:
    """What to tell whoever vendors a file; empty where nothing is too old."""
    found = allowed_too_old(repo)
    needs = f"Python {NEEDED['python']} and torch {NEEDED['torch']} or later"
    return f"{file} needs {needs}, and this project allows less: {', '.join(found)}" if found else ""


def _is_below(versions: str, least: Version) -> bool:
    """Whether a bound that is written down lies below: no bound at all is no word about old versions."""
    try:
        clauses = [(one.operator, Version(one.version.removesuffix(".*"))) for one in SpecifierSet(versions)]
    except (InvalidSpecifier, ValueError):
        return False
    lowest = max((version for operator, version in clauses if operator in (">=", ">", "==", "~=")), default=least)
    return lowest < least or any(
        (operator in ("<", "<=") and version < least) or (operator == "<" and version == least)
        for operator, version in clauses
    )


# ------------------------------------------------------------------ one function a format


def _pyproject(text: str) -> Asked:
    project: dict[str, Any] = tomlkit.parse(text).unwrap().get("project", {})
    if "requires-python" in project:
        yield "python", project["requires-python"]
    yield from _listed(project.get("dependencies", []))


def _poetry(text: str) -> Asked:
    table = tomlkit.parse(text).unwrap().get("tool", {}).get("poetry", {}).get("dependencies", {})
    for package in NEEDED:
        versions = table.get(package)
        if isinstance(versions, str):
            bare = versions.strip().lstrip("^~=")  # ^1.6, ~1.6 and 1.6: not before 1.6
            yield package, versions if versions[:1] in "<>!" else f">={bare}"


def _setup_cfg(text: str) -> Asked:
    config = ConfigParser(interpolation=None)
    config.read_string(text)
    if config.has_option("options", "python_requires"):
        yield "python", config.get("options", "python_requires")
    yield from _listed(config.get("options", "install_requires", fallback="").splitlines())


def _setup_py(text: str) -> Asked:
    keywords = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.keyword)]
    for keyword in keywords:
        if keyword.arg == "python_requires":
            yield "python", ast.literal_eval(keyword.value)
        elif keyword.arg == "install_requires":
            yield from _listed(ast.literal_eval(keyword.value))


def _listed(lines: list[str]) -> Asked:
    for line in lines:
        try:
            requirement = Requirement(line.partition(" #")[0].strip())
        except InvalidRequirement:
            continue
        if requirement.name.lower() in NEEDED and requirement.marker is None and requirement.url is None:
            yield requirement.name.lower(), str(requirement.specifier)


_READERS: tuple[tuple[str, Callable[[str], Asked]], ...] = (
    ("pyproject.toml", _pyproject),
    ("pyproject.toml", _poetry),
    ("setup.cfg", _setup_cfg),
    ("setup.py", _setup_py),
    ("requirements.txt", lambda text: _listed(text.splitlines())),
)
