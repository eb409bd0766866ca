# SPDX-License-Identifier: MIT
"""The run on GPUs names files of this checkout: `nox -s gpu`, which nothing here can run as a whole."""

from pathlib import Path

from tests.gpu.__main__ import WRAPPERS, steps
from tests.house.pages import ROOT


def test_the_run_on_gpus_names_files_that_are_there() -> None:
    """Those that it runs, and those that it leaves to another step."""
    words = [word for step in steps(Path("train.py")) for word in step.command]
    files = {word.removeprefix("--ignore=") for word in words if "tests/" in word}
    assert set(WRAPPERS) < files
    assert [file for file in files if not (ROOT / file).exists()] == []
