# SPDX-License-Identifier: MIT
"""Carries the core's and the adapters' sources inside this distribution, so that it renders without a checkout."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CARRIED = "src/shared_distributed_tools/_sources"


class CarrySources(BuildHookInterface[Any]):
    """In a checkout the sources lie beside this folder; in an unpacked sdist they are in place already."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files of the core and of every adapter to what is built."""
        root = Path(self.root)
        if version == "editable" or (root / CARRIED).is_dir():
            return
        checkout = root.parent
        manifests = [checkout / "shared/distributed/pyproject.toml", *checkout.glob("packages/*/pyproject.toml")]
        if not manifests[0].is_file():
            msg = f"no sources to carry: {checkout} is not a checkout; build from one, or from an sdist"
            raise FileNotFoundError(msg)
        projects = [manifest.parent for manifest in manifests]
        files = [
            *manifests,
            *[file for project in projects for file in (*project.glob("contract.json"), *project.glob("LICENSE"), *project.glob("src/*/*.py"))],
        ]
        inside = CARRIED if self.target_name == "sdist" else CARRIED.removeprefix("src/")
        for file in sorted(files):
            build_data["force_include"][str(file)] = f"{inside}/{file.relative_to(checkout).as_posix()}"
