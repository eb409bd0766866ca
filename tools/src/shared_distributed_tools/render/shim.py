# SPDX-License-Identifier: MIT
"""The shim: the file that a project keeps in the old place while its code comes from the installed adapter."""

import re

from ..catalog import ADAPTERS, Adapter


def shim(adapter: Adapter) -> str:
    """The file that re-exports an adapter's names."""
    names = "".join(f"    {name},\n" for name in adapter.api)
    quoted = "".join(f'    "{name}",\n' for name in adapter.api)
    return _around(adapter, names, quoted)


def _around(adapter: Adapter, names: str = "", quoted: str = "") -> str:
    first = f'"""Kept for those who import from here: the code is in {adapter.distribution}."""'
    return f"{first}\n\nfrom {adapter.module} import (\n{names})\n\n__all__ = [\n{quoted}]\n"


def shim_of(content: bytes) -> Adapter | None:
    """The adapter that a file is the shim of, of whatever release; None if it has anything else in it."""
    without_names = re.sub(rb'(?m)^    ("?)\w+\1,\n', b"", content.replace(b"\r\n", b"\n"))
    return next((one for one in ADAPTERS.values() if without_names == _around(one).encode()), None)
