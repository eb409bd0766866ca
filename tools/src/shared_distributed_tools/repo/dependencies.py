# SPDX-License-Identifier: MIT
"""Where a project lists its dependencies, and one more there. Nothing is run, and nothing is guessed.

Edited are `[project].dependencies` in pyproject.toml and a plain list in the `setup()` of setup.py; for everything
else (poetry, setup.cfg, requirements.txt, lists that are computed) the answer is None, and a person adds the line.
"""

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomlkit
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from tomlkit.exceptions import TOMLKitError

from ..errors import RefusalError
from .changes import Change
from .files import like, read, with_lf

_LISTS = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")


def name_in(requirement: str) -> str:
    """The distribution that a requirement is about. RefusalError if it is not one."""
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        msg = f"{requirement!r} is not a requirement ({reason}); write NAME>=VERSION or NAME @ URL"
        raise RefusalError(msg) from error


def is_listed(repo: Path, distribution: str) -> bool:
    """Whether any of the files that list dependencies names a distribution."""
    word = re.escape(distribution).replace(r"\-", "[-_.]").encode()
    name = re.compile(rb"(?<![\w.-])" + word + rb"(?![\w-])", re.IGNORECASE)
    return any(name.search(read(repo / file) or b"") for file in _LISTS)


def added(repo: Path, requirements: Sequence[str]) -> Change | None:
    """The change that lists some more requirements; None where a person has to add them."""
    for name, edit in (("pyproject.toml", _in_pyproject), ("setup.py", _in_setup)):
        content = read(repo / name)
        if content is None:
            continue
        try:
            text: str | None = with_lf(content).decode()
            for requirement in requirements:
                text = None if text is None else edit(text, requirement)
        except (TOMLKitError, SyntaxError, ValueError):  # damaged, or no text
            continue
        if text is not None:
            return Change(name, content, like(text.encode(), content))
    return None


def _in_pyproject(text: str, requirement: str) -> str | None:
    document: dict[str, Any] = tomlkit.parse(text)
    project = document.get("project")
    if project is None or "dependencies" in project.get("dynamic", ()):
        return None
    project.setdefault("dependencies", []).append(requirement)
    return tomlkit.dumps(document)


def _in_setup(text: str, requirement: str) -> str | None:
    """A plain list gets one more string, laid out as the last one is."""
    listed = _plain_list(text)
    if listed is None or not listed.elts:
        return None
    last = listed.elts[-1]
    lines = text.splitlines(keepends=True)
    row = (last.end_lineno or 0) - 1
    column = len(lines[row].encode()[: last.end_col_offset].decode())
    before, after = lines[row][:column], lines[row][column:]
    has_comma = after.lstrip().startswith(",")
    quote = before[-1]
    new = f"{quote}{requirement}{quote}"
    if last.lineno == listed.lineno or "]" in after.partition("#")[0]:
        lines[row] = f"{before}, {new}{after}"
    else:
        indent = re.match(r"\s*", before)[0]  # type: ignore[index]  # matches anything
        comma = "," if has_comma else ""
        lines[row] = f"{before}{'' if has_comma else ','}{after}"
        lines.insert(row + 1, f"{indent}{new}{comma}\n")
    edited = "".join(lines)
    after_list = _plain_list(edited)
    expected = [*ast.literal_eval(listed), requirement]
    return edited if after_list is not None and ast.literal_eval(after_list) == expected else None


def _plain_list(text: str) -> ast.List | None:
    """The list of strings that the one call of `setup` gives as install_requires."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    setups = [call for call in calls if getattr(call.func, "id", getattr(call.func, "attr", "")) == "setup"]
    values = [word.value for call in setups for word in call.keywords if word.arg == "install_requires"]
    if len(values) != 1 or not isinstance(values[0], ast.List):
        return None
    is_plain = all(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in values[0].elts)
    return values[0] if is_plain else None
