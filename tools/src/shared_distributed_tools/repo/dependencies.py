# SPDX-License-Identifier: MIT
"""What a project lists as its dependencies, by each format's own rules, and one more there. Nothing is run or guessed.

A project's manifests are those of the nearest folder above a file that has one. Edited are a list
`[project].dependencies` in pyproject.toml, and requirements.txt where it is the only manifest; for everything else
(setup.py, setup.cfg, poetry, lists that are dynamic) a person adds the line.
"""

import ast
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomlkit
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from tomlkit.exceptions import TOMLKitError

from ..errors import RefusalError
from .changes import Change
from .files import UnreadableError, like, read, with_lf

MANIFESTS = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
_LARGEST = 2**18  # bytes; more than anybody lists, and seconds of work
# what a file raises that is damaged, nested too deeply, or has something else where a list is looked for
_DAMAGED = (TOMLKitError, SyntaxError, ValueError, TypeError, AttributeError, LookupError, RecursionError, MemoryError)
# what a vendored file and the adapters need, and versions that are too old for them
NEEDED = {"torch": "2.0", "Python": "3.10"}
_TOO_OLD = {
    "torch": ["0.4", "1.0", *(f"1.{minor}" for minor in range(14)), "1.13.1"],
    "Python": [*(f"3.{minor}" for minor in range(10)), "3.9.99"],
}


def name_in(requirement: str) -> str:
    """The distribution that a requirement is about. RefusalError if it is not one."""
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        msg = f"{requirement!r} is not a requirement ({reason}); write NAME>=VERSION or NAME @ URL"
        raise RefusalError(msg) from error


def home_of(repo: Path, file: str) -> Path:
    """The nearest folder above a file of a repo that has a manifest; the repo itself where none has."""
    for folder in (repo / file).parents:
        if folder == repo or any(_is_manifest(folder, name) for name in MANIFESTS):
            return folder
    return repo


def is_listed(folder: Path, distribution: str) -> bool:
    """Whether a project lists a distribution, in any of the usual files; comments do not count."""
    for name in MANIFESTS:
        for line in _listed(folder, name):
            found = re.match(r"\s*([\w.-]+)\s*(?:$|[\[(@;#<=>!~]|--)", line)
            if found and canonicalize_name(found[1]) == distribution:
                return True
    return False


def too_old(folder: Path) -> str:
    """One sentence if a project admits a Python or a torch that is older than what is needed; else nothing."""
    asked: dict[str, str] = {}
    where: list[str] = []
    for name in MANIFESTS:
        found = {**_requirements(_listed(folder, name), "torch"), **_python(folder, name)}
        if found:
            where.append(name)
            asked = {**found, **asked}
    old = [f"{what}{spec}" for what, spec in asked.items() if _admits(spec, _TOO_OLD[what])]
    if not old:
        return ""
    needed = " and ".join(f"{what} {version}" for what, version in NEEDED.items())
    return f"{' and '.join(where)} allows {' and '.join(old)}, but the file needs {needed} or later: raise it"


def added(repo: Path, folder: Path, requirements: Sequence[str]) -> Change | None:
    """The change that lists some more requirements; None where a person has to add them."""
    names = [name for name in MANIFESTS if _is_manifest(folder, name)]
    if not names or names[0] in ("setup.py", "setup.cfg"):
        return None
    name = names[0]
    try:
        text = _text(folder, name)
        edit = _add_to_pyproject if name == "pyproject.toml" else _add_to_requirements
        for requirement in requirements:
            text = edit(text, requirement)
    except _DAMAGED:
        return None
    content = read(folder / name)
    path = (folder / name).relative_to(repo).as_posix()
    return Change(path, content, like(text.encode(), content))


def _text(folder: Path, name: str) -> str:
    content = read(folder / name) or b""
    if len(content) > _LARGEST:
        raise ValueError(name)
    return with_lf(content).decode()


def _is_manifest(folder: Path, name: str) -> bool:
    """Whether a file is there, and is about dependencies; what cannot be read might be."""
    try:
        text = _text(folder, name)
    except (*_DAMAGED, UnreadableError):
        return True
    words = {"pyproject.toml": r"(?m)^\[(project|tool\.poetry)\b", "setup.cfg": r"(?m)^\[options\]"}
    return bool(text) and bool(re.search(words.get(name, ""), text))


def _listed(folder: Path, name: str) -> list[str]:
    """What may be a requirement in a file."""
    with suppress(*_DAMAGED):
        text = _text(folder, name)
        if name == "pyproject.toml":
            document = tomlkit.parse(text)
            poetry = document.get("tool", {}).get("poetry", {}).get("dependencies", {})
            lines = [f"{key}{_poetry_range(value)}" for key, value in poetry.items()]
            return [*lines, *map(str, document.get("project", {}).get("dependencies", ()))]
        if name == "setup.py":
            constants = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
            return [value for value in constants if isinstance(value, str)]
        return text.splitlines()
    return []


def _poetry_range(value: object) -> str:
    """A range as poetry writes it, in the way of everybody else, if that is certain."""
    text = str(value)
    if re.fullmatch(r"\^[\d.]+", text):
        return f">={text[1:]}"
    return text if re.match(r"[<=>!~]=?", text) else ""


def _requirements(lines: Iterable[str], name: str) -> dict[str, str]:
    for line in lines:
        with suppress(InvalidRequirement):
            requirement = Requirement(line.partition(" #")[0].strip())
            if canonicalize_name(requirement.name) == name:
                return {name: str(requirement.specifier)}
    return {}


def _python(folder: Path, name: str) -> dict[str, str]:
    """The range of Python that a file asks for."""
    with suppress(*_DAMAGED):
        text = _text(folder, name)
        found = re.search(r"(?m)(?:requires-python|python_requires|^python)\s*=\s*['\"]?([<=>!~^][^'\"\n]*)", text)
        if found:
            return {"Python": _poetry_range(found[1].strip()) or found[1].strip()}
    return {}


def _admits(spec: str, versions: Iterable[str]) -> bool:
    try:
        return any(SpecifierSet(spec).contains(version) for version in versions)
    except InvalidSpecifier:
        return False


# ------------------------------------------------------------------ one more; an error where that is not safe


def _add_to_pyproject(text: str, requirement: str) -> str:
    document: Any = tomlkit.parse(text)
    if "dependencies" in document["project"].get("dynamic", ()):
        raise ValueError(text)
    document["project"]["dependencies"].append(requirement)
    return tomlkit.dumps(document)


def _add_to_requirements(text: str, requirement: str) -> str:
    if "--hash" in text or text.rstrip().endswith("\\"):
        raise ValueError(text)
    return f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{requirement}\n"
