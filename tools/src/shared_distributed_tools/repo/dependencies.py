# SPDX-License-Identifier: MIT
"""What a project lists as its dependencies, by each format's own rules, and one more there. Nothing is run or guessed.

Edited are a list `[project].dependencies` in pyproject.toml and a plain list in the `setup()` of setup.py; for
everything else (poetry, setup.cfg, requirements, lists that are dynamic or computed) a person adds the line.
"""

import ast
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomlkit
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from tomlkit.exceptions import TOMLKitError

from ..errors import RefusalError
from .changes import Change
from .files import like, read, with_lf

_LARGEST = 2**18  # bytes; more than anybody lists, and seconds of work
# what a file raises that is damaged, nested too deeply, or has something else where a list is looked for
_DAMAGED = (TOMLKitError, SyntaxError, ValueError, TypeError, AttributeError, LookupError, RecursionError, MemoryError)


def name_in(requirement: str) -> str:
    """The distribution that a requirement is about. RefusalError if it is not one."""
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        msg = f"{requirement!r} is not a requirement ({reason}); write NAME>=VERSION or NAME @ URL"
        raise RefusalError(msg) from error


def is_listed(repo: Path, distribution: str) -> bool:
    """Whether a project lists a distribution, in any of the usual files; comments do not count."""
    listed: list[str] = []
    for file in ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt"):
        with suppress(*_DAMAGED):
            listed += _strings(file, _text(repo, file))
    names = (re.match(r"\s*([\w.-]+)\s*(?:$|[\[(@;#<=>!~]|--)", one) for one in listed)
    return any(canonicalize_name(found[1]) == distribution for found in names if found)


def _strings(file: str, text: str) -> list[str]:
    """What may be a requirement in a file."""
    if file == "pyproject.toml":
        document = tomlkit.parse(text)
        poetry = document.get("tool", {}).get("poetry", {}).get("dependencies", ())
        return [str(one) for one in (*poetry, *document.get("project", {}).get("dependencies", ()))]
    if file == "setup.py":
        constants = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        return [value for value in constants if isinstance(value, str)]
    return text.splitlines()


def added(repo: Path, requirements: Sequence[str]) -> Change | None:
    """The change that lists some more requirements; None where a person has to add them."""
    try:
        project = tomlkit.parse(_text(repo, "pyproject.toml")).get("project")
        is_static = project is not None and "dependencies" not in project.get("dynamic", ())
        name, edit = ("pyproject.toml", _add_to_pyproject) if is_static else ("setup.py", _add_to_setup)
        text = _text(repo, name)
        for requirement in requirements:
            text = edit(text, requirement)
    except _DAMAGED:
        return None
    content = read(repo / name)
    return Change(name, content, like(text.encode(), content))


def _text(repo: Path, name: str) -> str:
    content = read(repo / name) or b""
    if len(content) > _LARGEST:
        raise ValueError(name)
    return with_lf(content).decode()


# ------------------------------------------------------------------ one more; an error where that is not safe


def _add_to_pyproject(text: str, requirement: str) -> str:
    document: Any = tomlkit.parse(text)
    document["project"]["dependencies"].append(requirement)
    return tomlkit.dumps(document)


def _add_to_setup(text: str, requirement: str) -> str:
    """A plain list gets one more string before its last one, on a line of its own if that one has it."""
    listed, strings = _plain_list(text)
    last, lines = listed.elts[-1], text.split("\n")
    line = lines[last.lineno - 1].encode()
    before, after = line[: last.col_offset].decode(), line[last.col_offset :].decode()
    space = " " if before.strip() else f"\n{before}"
    lines[last.lineno - 1] = f"{before}{after[0]}{requirement}{after[0]},{space}{after}"
    edited = "\n".join(lines)
    if _plain_list(edited)[1] != [*strings[:-1], requirement, strings[-1]]:
        raise ValueError(edited)
    return edited


def _plain_list(text: str) -> tuple[ast.List, list[str]]:
    """The list of strings that the one call of `setup` gives as install_requires: its syntax, and the strings."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    setups = [call for call in calls if getattr(call.func, "id", getattr(call.func, "attr", "")) == "setup"]
    (value,) = [word.value for call in setups for word in call.keywords if word.arg == "install_requires"]
    strings = ast.literal_eval(value)
    if not isinstance(value, ast.List) or not all(isinstance(one, str) for one in strings):
        raise ValueError(text)
    return value, strings
