# SPDX-License-Identifier: MIT
"""The adapters, and where each one lives downstream."""

from dataclasses import dataclass

from .errors import ToolError


@dataclass(frozen=True)
class Adapter:
    """One adapter. Paths are relative, with forward slashes."""

    name: str
    downstream: str  # the project that it is made for
    target: str  # the file that it replaces there
    flat_beside: str | None = None  # forks without a package keep `distributed.py` beside this module

    @property
    def folder(self) -> str:
        """Its project in the sources."""
        return f"packages/{self.name}"

    @property
    def source(self) -> str:
        """Its one module in the sources."""
        return f"{self.folder}/src/{self.name.replace('-', '_')}_distributed/__init__.py"


ADAPTERS = {
    adapter.name: adapter
    for adapter in (
        Adapter("mirasol", "mirasol-pytorch", "mirasol_pytorch/distributed.py"),
        Adapter("musiclm", "musiclm-pytorch", "musiclm_pytorch/distributed.py", flat_beside="musiclm.py"),
        Adapter("spear-tts", "spear-tts-pytorch", "spear_tts_pytorch/distributed.py"),
        Adapter("st-moe", "st-moe-pytorch", "st_moe_pytorch/distributed.py"),
    )
}


def adapter_named(name: str) -> Adapter:
    """The adapter of that name; ToolError with the names there are."""
    if name not in ADAPTERS:
        msg = f"no adapter is called {name!r}; there are {', '.join(ADAPTERS)}"
        raise ToolError(msg)
    return ADAPTERS[name]
