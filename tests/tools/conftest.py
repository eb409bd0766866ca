# SPDX-License-Identifier: MIT
"""What the tests of the tools share: known copies, and sources that may be changed."""

from pathlib import Path

import pytest

from shared_distributed_tools.migrate import stages
from shared_distributed_tools.render import sources
from shared_distributed_tools.scan import fingerprint, survey
from tests.downstream.commands import moved
from tests.downstream.projects import ORIGINALS, PROJECT
from tests.downstream.trees import copy_sources


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the copies in `tests.downstream.projects` were the originals that scan knows, and there was a release."""
    monkeypatch.setattr(stages, "is_released", lambda: True)
    ours = {name: fingerprint.record(text) for name, text in ORIGINALS.items()}
    for module in (fingerprint, survey):
        monkeypatch.setattr(module, "known_originals", lambda: ours)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A project with its own copy, committed."""
    return PROJECT.make(tmp_path, "repo")


@pytest.fixture
def vendored(repo: Path) -> Path:
    """The same with a current file, committed. For tests that use `known`."""
    return moved(repo, "vendored")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that a test may change: they are used from now on."""
    copied = copy_sources(tmp_path / "sources")
    monkeypatch.setattr(sources, "root", lambda: copied)
    return copied
