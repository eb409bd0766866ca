# SPDX-License-Identifier: MIT
"""The rendered file inside a copy of a downstream project, with that project's own checks."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from downstream.trees import LAYOUTS, OLD, git, make_repo
from shared_distributed_tools.downstream import main, try_in_copy

# looks the module up without importing it: these trees have no use for torch
LOOKS = """\
import importlib.util
import pathlib

origin = importlib.util.find_spec("{module}").origin
assert "@generated" in pathlib.Path(origin).read_text()
print("their own check ran")
"""
IMPORTS = """\
from musiclm import AllGather

assert (AllGather.__module__, AllGather.__qualname__) == ("distributed", "AllGather")
print("their own check ran")
"""
# layout -> what its project has to check itself with, and what that prints
CHECKS: dict[str, tuple[dict[str, str], str]] = {
    "musiclm": ({"assert.py": LOOKS}, "their own check ran"),
    "spear-tts": ({"check.py": LOOKS, "tests/test_it.py": "def test_it():\n    assert False\n"}, "their own check ran"),
    "mirasol": ({"tests/test_it.py": f"def test_it():\n    exec({LOOKS!r})\n"}, "1 passed"),
    "st-moe": ({}, """with", *m.__all__)'\nimported st_moe_pytorch.distributed with AllGather"""),
    "flat": ({"assert.py": IMPORTS}, "their own check ran"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_runs_with_the_file_swapped_in(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], layout: str
) -> None:
    """The project's own check sees our file under the old name; what ran is printed; the checkout stays as it is."""
    adapter, target, _ = LAYOUTS[layout]
    module = target.removesuffix(".py").replace("/", ".")
    files, prints = CHECKS[layout]
    repo = make_repo(tmp_path, layout, extra={name: text.replace("{module}", module) for name, text in files.items()})
    code = try_in_copy(repo)
    output = capfd.readouterr()
    assert code == 0, output
    assert f"{adapter} at {target}; running python" in output.out
    assert prints in output.out
    assert (repo / target).read_text() == OLD
    assert git(repo, "status", "--short") == ""


def test_a_project_whose_check_fails_is_reported(tmp_path: Path) -> None:
    """Exit code 1 if any project fails, and the others run all the same."""
    bad = make_repo(tmp_path / "bad", "spear-tts", extra={"check.py": "raise SystemExit(3)\n"})
    good = make_repo(tmp_path / "good", "musiclm", extra={"check.py": ""})
    done = CliRunner().invoke(main, [str(bad), str(good)])
    assert done.exit_code == 1
    assert "spear-tts-pytorch: python check.py ended with exit code 3" in done.output
    assert "musiclm-pytorch: python check.py ended with exit code 0" in done.output
    assert CliRunner().invoke(main, [str(good)]).exit_code == 0


def test_a_repo_that_no_adapter_fits_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is run in it."""
    (tmp_path / "assert.py").write_text("print('ran')\n")
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert (done.exit_code, "found none" in done.output) == (1, True)
    assert "ran" not in capfd.readouterr().out
