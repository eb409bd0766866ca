# SPDX-License-Identifier: MIT
"""What each adapter promises, from the `contract.json` beside its sources: adding one adds its tests."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

CONTRACTS: dict[str, dict[str, Any]] = {
    contract.parent.name: json.loads(contract.read_text())
    for contract in sorted((Path(__file__).resolve().parents[2] / "packages").glob("*/contract.json"))
}
ADAPTERS = tuple(CONTRACTS)
# all ways to gather with a gradient, of the core and of every adapter
GRADIENTS = {"core": ["sum", "local"], **{name: contract["gradients"] for name, contract in CONTRACTS.items()}}
SUBJECTS = tuple(f"{name} {gradient}" for name, gradients in GRADIENTS.items() for gradient in gradients)


def adapter(name: str) -> Any:
    """An adapter's module: the package, or the vendored file where those are tested."""
    return importlib.import_module(f"{name.replace('-', '_')}_distributed")


def core() -> Any:
    """The core, imported when asked for: the vendored files are tested where there is none."""
    return importlib.import_module("shared_distributed")


def marked(subjects: "list[str] | tuple[str, ...]") -> list[Any]:
    """Parameters: adapters or subjects, each of the suite that its first word names, or else of the core's."""
    suites = {subject: subject.split()[0] for subject in subjects}
    return [
        pytest.param(subject, marks=pytest.mark.suite(name if name in ADAPTERS else "core"))
        for subject, name in suites.items()
    ]


of_adapter = pytest.mark.parametrize("name", marked(ADAPTERS))
