# SPDX-License-Identifier: MIT
"""The bodies of earlier releases, by their hash: what a merge starts from where history has lost it."""

from pathlib import Path

from ...catalog import ADAPTERS
from .. import rendered_parts

FOLDER = Path(__file__).resolve().parent


def released(body_hash: str) -> bytes | None:
    """The body of that hash, if a release rendered it."""
    file = FOLDER / f"{body_hash}.txt"
    return file.read_bytes() if file.is_file() else None


def is_released() -> bool:
    """Whether there has been a release."""
    return any(FOLDER.glob("*.txt"))


def keep(folder: str | Path) -> None:
    """Add what this version renders; a release does this for those that come after it."""
    for name in ADAPTERS:
        header, body = rendered_parts(name)
        (Path(folder) / f"{header.body}.txt").write_bytes(body)
