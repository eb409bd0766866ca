# SPDX-License-Identifier: MIT
"""The shim: the file that a project keeps in the old place while its code comes from the installed adapter."""

from ..catalog import ADAPTERS, Adapter
from ..repo.files import with_lf


def shim(adapter: Adapter) -> str:
    """The file that re-exports an adapter's names."""
    names = "".join(f"    {name},\n" for name in adapter.api)
    quoted = "".join(f'    "{name}",\n' for name in adapter.api)
    return (
        f'"""Kept for those who import from here: the code is in {adapter.distribution}."""\n\n'
        f"from {adapter.module} import (\n{names})\n\n__all__ = [\n{quoted}]\n"
    )


_SHIMS = {shim(adapter).encode(): adapter for adapter in ADAPTERS.values()}


def shim_of(content: bytes) -> Adapter | None:
    """The adapter that a file is the shim of, whatever its newlines."""
    return _SHIMS.get(with_lf(content))
