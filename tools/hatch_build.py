# SPDX-License-Identifier: MIT
"""Carries the sources and their revision inside this distribution, so that it renders without a checkout."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CARRIED = "src/shared_distributed_tools/_sources"
CARRIED_FILES = ("LICENSE", "contract.json", "src/*/*.py")


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
            *[file for project in projects for name in CARRIED_FILES for file in project.glob(name)],
        ]
        inside = CARRIED if self.target_name == "sdist" else CARRIED.removeprefix("src/")
        for file in sorted(files):
            build_data["force_include"][str(file)] = f"{inside}/{file.relative_to(checkout).as_posix()}"
        build_data["force_include"][self._revision(checkout, files)] = f"{inside}/REVISION"

    def _revision(self, checkout: Path, files: list[Path]) -> str:
        """A file that says which commit the sources are from; deleted with this object."""
        sys.path.insert(0, str(Path(self.root) / "src"))
        from shared_distributed_tools.repo.git import revision_of

        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "REVISION"
        file.write_text(revision_of(checkout, files) + "\n", encoding="utf-8")
        return str(file)
