# SPDX-License-Identifier: MIT
"""A project's dependencies, changed in the file and the format that it keeps them in.

The first of these that lists any: pyproject.toml (`[project]`, then poetry's table), setup.cfg, setup.py,
requirements.txt. Nothing is run: setup.py is read as text, and has to hold a plain list.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libcst as cst
import tomlkit
from libcst import matchers as m
from packaging.utils import canonicalize_name
from tomlkit.exceptions import TOMLKitError

from ..errors import RefusalError
from ..files import is_crlf, read, with_newlines
from .formatting import with_one_more, without
from .origin import Requirement
from .record import FileChange

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def change(repo: Path, add: Sequence[Requirement], remove: str = "") -> FileChange | None:
    """The change of the one file that lists dependencies; None where it says so already.

    What is listed already is not added. RefusalError where no file lists any.
    """
    for name, edit in _FORMATS:
        content = read(repo / name)
        if content is None:
            continue
        try:
            after = edit(content.decode().replace("\r\n", "\n"), _Wish(add, remove))
        except (TOMLKitError, cst.ParserSyntaxError, UnicodeDecodeError) as error:
            msg = f"{name} cannot be read: {str(error).splitlines()[0]}; mend it first"
            raise RefusalError(msg) from error
        if after is not None:
            new = with_newlines(after.encode(), crlf=is_crlf(content))
            return None if new == content else FileChange(name, content, new)
    wanted = " and ".join(f"`{requirement}`" for requirement in add)
    msg = (
        f"{repo} lists its dependencies in no pyproject.toml, setup.cfg or requirements.txt, nor as a plain list in "
        f"setup.py; put {wanted} into a requirements.txt, commit it, and run this again"
    )
    raise RefusalError(msg)


class _Wish:
    """What should come and go."""

    def __init__(self, add: Sequence[Requirement], remove: str) -> None:
        self._add, self._remove = add, remove

    def among(self, listed: Sequence[str]) -> tuple[dict[int, Requirement | None], list[Requirement]]:
        """For requirements as they are listed: what stands in the place of some, and what comes at the end."""
        names = [canonicalize_name(found[0]) if (found := _NAME.match(one.strip())) else "" for one in listed]
        missing = [requirement for requirement in self._add if canonicalize_name(requirement.name) not in names]
        places = [place for place, name in enumerate(names) if name and name == self._remove]
        return {place: missing.pop(0) if missing else None for place in places}, missing

    @property
    def has_url(self) -> bool:
        """Whether something comes from elsewhere than an index."""
        return any(requirement.url for requirement in self._add)


# ------------------------------------------------------------------ one function a format; None: it lists nothing


def _pyproject(text: str, wish: _Wish) -> str | None:
    document: dict[str, Any] = tomlkit.parse(text)
    project = document.get("project")
    if project is None or "dependencies" in project.get("dynamic", ()):
        return None
    _refuse_where_hatch_would(document, wish)
    array = project.setdefault("dependencies", [])
    places, missing = wish.among(array)
    for place, requirement in sorted(places.items(), reverse=True):
        if requirement is None:
            del array[place]
        else:
            array[place] = str(requirement)
    for requirement in missing:
        array.append(str(requirement))
    return tomlkit.dumps(document)


def _refuse_where_hatch_would(document: dict[str, Any], wish: _Wish) -> None:
    backend = str(document.get("build-system", {}).get("build-backend", ""))
    allowed = document.get("tool", {}).get("hatch", {}).get("metadata", {}).get("allow-direct-references", False)
    if wish.has_url and backend.startswith("hatchling") and not allowed:
        msg = (
            "pyproject.toml: hatchling builds nothing with a requirement that is no version. Set "
            "allow-direct-references = true in [tool.hatch.metadata], commit it, and run this again"
        )
        raise RefusalError(msg)


def _poetry(text: str, wish: _Wish) -> str | None:
    document: dict[str, Any] = tomlkit.parse(text)
    table = document.get("tool", {}).get("poetry", {}).get("dependencies")
    if table is None:
        return None
    listed = list(table)
    places, missing = wish.among(listed)
    for place in places:
        del table[listed[place]]
    for requirement in [*filter(None, places.values()), *missing]:
        value = requirement.poetry()
        if isinstance(value, dict):
            inline = tomlkit.inline_table()
            inline.update(value)
            table[requirement.name] = inline
        else:
            table[requirement.name] = value
    return tomlkit.dumps(document)


def _setup_cfg(text: str, wish: _Wish) -> str | None:
    lines = text.splitlines(keepends=True)
    section, begin = "", None
    for number, line in enumerate(lines):
        if line.startswith("["):
            section = line.strip()
        elif section == "[options]" and re.match(r"install_requires\s*[=:]", line):
            begin = number
    if begin is None:
        return None
    end = begin + 1
    while end < len(lines) and (lines[end][:1].isspace() or lines[end].startswith("#")):
        end += 1
    items = [number for number in range(begin + 1, end) if lines[number].strip() and lines[number].lstrip()[0] != "#"]
    if not items and lines[begin].partition("=")[2].strip():  # on the line of the key: one below the other from now on
        key, _, value = lines[begin].partition("=")
        lines[begin : begin + 1] = [f"{key.rstrip()} =\n", f"    {value.strip()}\n"]
        items = [begin + 1]
    indent = re.match(r"\s*", lines[items[-1]])[0] if items else "    "  # type: ignore[index]
    last = items[-1] if items else begin
    return _edited_lines(lines, items, last, wish, indent)


def _requirements_txt(text: str, wish: _Wish) -> str | None:
    lines = text.splitlines(keepends=True)
    items = [number for number, line in enumerate(lines) if _NAME.match(line.strip())]
    return _edited_lines(lines, items, len(lines) - 1, wish, "")


def _edited_lines(lines: list[str], items: list[int], last: int, wish: _Wish, indent: str) -> str:
    if lines and not lines[last].endswith("\n"):
        lines[last] += "\n"
    places, missing = wish.among([lines[number] for number in items])
    lines[last + 1 : last + 1] = [f"{indent}{requirement}\n" for requirement in missing]
    for place, requirement in sorted(places.items(), reverse=True):
        lines[items[place] : items[place] + 1] = [] if requirement is None else [f"{indent}{requirement}\n"]
    return "".join(lines)


def _setup_py(text: str, wish: _Wish) -> str | None:
    module = cst.parse_module(text)
    found = m.findall(module, m.Arg(keyword=m.Name("install_requires"), value=m.List()))
    if len(found) != 1 or not isinstance(found[0], cst.Arg) or not isinstance(found[0].value, cst.List):
        return None
    old = found[0].value
    items = [one for one in old.elements if isinstance(one.value, cst.SimpleString)]
    if len(items) != len(old.elements):
        return None
    quote = items[0].value.quote if items and isinstance(items[0].value, cst.SimpleString) else "'"
    places, missing = wish.among([str(cst.ensure_type(one.value, cst.SimpleString).evaluated_value) for one in items])

    def element(requirement: Requirement) -> cst.SimpleString:
        return cst.SimpleString(f"{quote}{requirement}{quote}")

    elements: list[cst.BaseElement] = list(old.elements)
    for place, requirement in sorted(places.items(), reverse=True):
        if requirement is None:
            elements = without(elements, elements[place])
        else:
            elements[place] = elements[place].with_changes(value=element(requirement))
    closing = old.rbracket.whitespace_before
    for requirement in missing:
        opening = old.lbracket.whitespace_after
        elements, closing = with_one_more(elements, cst.Element(element(requirement)), opening, closing)
    new = old.with_changes(elements=elements, rbracket=old.rbracket.with_changes(whitespace_before=closing))
    return cst.ensure_type(module.deep_replace(old, new), cst.Module).code


_FORMATS = (
    ("pyproject.toml", _pyproject),
    ("pyproject.toml", _poetry),
    ("setup.cfg", _setup_cfg),
    ("setup.py", _setup_py),
    ("requirements.txt", _requirements_txt),
)
