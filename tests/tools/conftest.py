# SPDX-License-Identifier: MIT
"""Every test in this folder is of the suite `tools`."""

from pathlib import Path

import pytest

from downstream.projects import ORIGINALS
from downstream.trees import copy_sources
from shared_distributed_tools.render import sources
from shared_distributed_tools.scan import fingerprint, survey

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The suites' own rule goes by the names of files; this one by the folder."""
    suite, vendored = config.getoption("--suite"), config.getoption("--vendored")
    if not collection_path.name.startswith("test_") or not (suite or vendored):
        return None
    return vendored or suite != "tools"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, before the suites are told apart."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.suite("tools"))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the copies in `downstream.projects`, which are of our own writing, were the originals that scan knows."""
    ours = tuple(fingerprint.record(f"our {name}", name, text) for name, text in ORIGINALS.items())
    for module in (fingerprint, survey):
        monkeypatch.setattr(module, "known_variants", lambda: ours)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that a test may change: they are used from now on."""
    copied = copy_sources(tmp_path / "sources")
    monkeypatch.setattr(sources, "root", lambda: copied)
    return copied
