# SPDX-License-Identifier: MIT
"""The shim: the file that a project keeps in the old place while its code comes from the installed adapter."""

import ast

from ..catalog import ADAPTERS, Adapter

_FIRST = '"""Kept for those who import from here: the code is in {}."""\n'


def shim(adapter: Adapter) -> str:
    """The file that re-exports an adapter's names."""
    names = "".join(f"    {name},\n" for name in adapter.api)
    quoted = "".join(f'    "{name}",\n' for name in adapter.api)
    first = _FIRST.format(adapter.distribution)
    return f"{first}\nfrom {adapter.module} import (\n{names})\n\n__all__ = [\n{quoted}]\n"


def shim_of(content: bytes) -> Adapter | None:
    """The adapter that a file is the shim of, of whatever release; None if it has anything else in it."""
    first = content.splitlines()[0].decode(errors="replace") if content else ""
    adapter = next((one for one in ADAPTERS.values() if first == _FIRST.format(one.distribution).rstrip()), None)
    try:
        statements = ast.parse(content).body[1:] if adapter else []
    except SyntaxError:
        return None
    return adapter if adapter and all(_hands_on(one, adapter) for one in statements) else None


def _hands_on(statement: ast.stmt, adapter: Adapter) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return statement.module == adapter.module
    return isinstance(statement, ast.Assign) and [ast.unparse(one) for one in statement.targets] == ["__all__"]
