# SPDX-License-Identifier: MIT
"""What migration has to know about an adapter, from its `contract.json`: its names, its ways beside the core's."""

import json
from dataclasses import dataclass

from ..catalog import ADAPTERS, Adapter, adapter_named, root
from ..sources import load

CORE_DISTRIBUTION = "shared-distributed"

# the same name, the same arguments and the same result in the core
SAME_IN_CORE = frozenset(
    {
        "all_gather_same_dim",
        "all_gather_variable_dim",
        "gather_sizes",
        "has_only_one_value",
        "pad_dim_to",
        "split_by_rank",
    }
)
# the same meaning under another name
RENAMED_IN_CORE = {"get_is_distributed": "is_distributed"}


@dataclass(frozen=True)
class Traits:
    """One adapter, as migration sees it."""

    adapter: Adapter
    exports: tuple[str, ...]
    has_module: bool  # `AllGather` is an nn.Module; elsewhere an autograd Function
    sizes_may_be_none: bool  # alone, the input comes back with None for the sizes

    @property
    def distribution(self) -> str:
        """What is installed."""
        return f"{self.adapter.name}-distributed"

    @property
    def module(self) -> str:
        """What is imported."""
        return self.distribution.replace("-", "_")

    @property
    def version(self) -> str:
        """The version of this release; all distributions have the same."""
        return load(self.adapter).adapter_version

    @property
    def asks_when_built(self) -> bool:
        """Whether "are we distributed?" is answered once, when the module is built."""
        return self.has_module and self.sizes_may_be_none

    @property
    def gathers(self) -> frozenset[str]:
        """The names whose calls, or whose objects' calls, give a tensor and the sizes, with a gradient."""
        return frozenset({"AllGather", "AllGatherFunction", "all_gather"}) & set(self.exports)

    def shim(self) -> str:
        """The file that stands in the old place and re-exports from the installed adapter."""
        names = "".join(f"    {name},\n" for name in self.exports)
        quoted = "".join(f'    "{name}",\n' for name in self.exports)
        return (
            f'"""Kept for those who import from here: the code is in {self.distribution}."""\n\n'
            f"from {self.module} import (\n{names})\n\n__all__ = [\n{quoted}]\n"
        )


def traits_of(name: str) -> Traits:
    """The traits of the adapter of that name."""
    adapter = adapter_named(name)
    said = json.loads((root() / adapter.folder / "contract.json").read_text(encoding="utf-8"))
    has_module = said["api"]["AllGather"][0].startswith("(self")
    return Traits(adapter, tuple(said["api"]), has_module, said["alone"] == "input")


def shim_of(content: bytes) -> Traits | None:
    """The adapter that a file is the shim of, whatever its newlines."""
    text = content.replace(b"\r\n", b"\n")
    return next((traits for traits in map(traits_of, ADAPTERS) if traits.shim().encode() == text), None)
