# SPDX-License-Identifier: MIT
"""The two sides of a comparison: the user's old file, and the adapter, each looked at once in a process of its own."""

import ast
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from ..catalog import Adapter
from ..errors import ToolError
from ..render import render, rendered_parts
from .loading import Description, Subject
from .ranks import Deadlines, NotLoadedError, Ranks


class Side(NamedTuple):
    """What to load on ranks, what is in it, and in words where it is from."""

    subject: Subject
    description: Description
    where: str
    version: str  # of the adapter; the old file's is its sha256


def old_side(file: Path, deadlines: Deadlines) -> Side:
    """The user's file, loaded once. ToolError where that cannot be done."""
    content = _parsed(file)
    sha256 = hashlib.sha256(content).hexdigest()
    path = file.resolve()
    is_in_package = (path.parent / "__init__.py").is_file()
    where = "loaded without its package's __init__" if is_in_package else "loaded from its path"
    try:
        subject = Subject("file", str(path))
        return Side(subject, _look(subject, deadlines), where, sha256)
    except NotLoadedError as error:
        problem = error
    if problem.for_an_import and is_in_package:
        try:
            subject = Subject("file in its package", str(path))
            return Side(subject, _look(subject, deadlines), "loaded after its package's __init__", sha256)
        except NotLoadedError as error:
            problem = NotLoadedError(f"{problem}; and after its package's __init__: {error}")
    msg = f"{file} cannot be loaded: {problem}. Run this where the file's project runs, with all that it imports"
    raise ToolError(msg) from problem


@contextmanager
def adapter_side(adapter: Adapter, deadlines: Deadlines) -> Iterator[Side]:
    """The adapter as it is installed, else as `adapters vendor` would write it."""
    name = adapter.module
    installed = Subject("installed", name)
    try:
        description = _look(installed, deadlines)
    except NotLoadedError as error:
        if not error.for_an_import:
            msg = f"the adapter's package {name} cannot be loaded: {error}; install it anew, or uninstall it"
            raise ToolError(msg) from error
    else:
        yield Side(installed, description, f"the installed package {name}", _version(adapter.distribution))
        return
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        file = Path(folder) / f"{name}.py"
        file.write_text(render(adapter.name), encoding="utf-8")
        rendered = Subject("rendered", str(file))
        number = rendered_parts(adapter.name)[0].version
        yield Side(rendered, _look(rendered, deadlines), "the rendered file; the package is not installed", number)


def _parsed(file: Path) -> bytes:
    """A file's content, once it is known to be Python."""
    try:
        content = file.read_bytes()
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror}; give the old distributed.py"
        raise ToolError(msg) from error
    try:
        ast.parse(content, str(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        msg = f"{file}{line} is not valid Python: {what}; mend it first"
        raise ToolError(msg) from error
    return content


def _look(subject: Subject, deadlines: Deadlines) -> Description:
    with Ranks(subject, 1, joined=False, deadlines=deadlines) as alone:
        return alone.description


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"  # importable, but not installed as a distribution
