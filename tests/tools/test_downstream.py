# SPDX-License-Identifier: MIT
"""`nox -s downstream`: the rendered file inside a copy of a downstream project, with that project's own checks."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.downstream.projects import PROJECTS
from tests.downstream.trees import commit, git, write_files

SCRIPT = Path(__file__).resolve().parents[2] / "tools/try_downstream.py"
# looks the module up without importing it: these trees have no use for torch
LOOKS = """\
import importlib.util
import pathlib

origin = importlib.util.find_spec("{module}").origin
assert "@generated" in pathlib.Path(origin).read_text()
print("their own check ran")
"""
# layout -> what its project has to check itself with, and what that prints
CHECKS: dict[str, tuple[dict[str, str], str]] = {
    "musiclm": ({"assert.py": LOOKS}, "their own check ran"),
    "spear-tts": ({"check.py": LOOKS, "tests/test_it.py": "def test_it():\n    assert False\n"}, "their own check ran"),
    "mirasol": ({"tests/test_it.py": f"def test_it():\n    exec({LOOKS!r})\n"}, "1 passed"),
    "st-moe": ({}, "imported st_moe_pytorch.distributed"),
    "flat": ({"assert.py": "from musiclm import AllGather\nprint(AllGather.__module__)\n"}, "\ndistributed\n"),
}


def downstream(*repos: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPT), *map(str, repos)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", CHECKS)
def test_each_layout_runs_with_the_file_swapped_in(tmp_path: Path, name: str) -> None:
    """The project's own check sees our file under the old name; what ran is printed; the checkout stays as it is."""
    project = PROJECTS[name]
    files, prints = CHECKS[name]
    module = project.copy.removesuffix(".py").replace("/", ".")
    repo = project.make(tmp_path, name)
    commit(write_files(repo, {file: text.replace("{module}", module) for file, text in files.items()}))
    done = downstream(repo)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{project.adapter} at {project.copy}; running python" in done.stdout
    assert prints in done.stdout
    assert git(repo, "status", "--short") == ""


def test_a_project_that_fails_is_reported(tmp_path: Path) -> None:
    """Exit code 1 if any fails, or fits no adapter, and the others run all the same."""
    bad = write_files(tmp_path / "bad", {**PROJECTS["spear-tts"].files, "check.py": "raise SystemExit(3)\n"})
    good = write_files(tmp_path / "good", {**PROJECTS["musiclm"].files, "check.py": ""})
    other = write_files(tmp_path / "other", {"assert.py": "print('ran')\n"})
    done = downstream(bad, other, good)
    assert done.returncode == 1
    assert "bad: python check.py ended with exit code 3" in done.stdout
    assert "other: one adapter has to fit its layout, found none" in done.stdout
    assert "\nran" not in done.stdout
    assert "good: python check.py ended with exit code 0" in done.stdout
