# SPDX-License-Identifier: MIT
"""Files with hostile names, as the copy and as a call site: every command answers, and nothing is read as a pattern."""

import shutil
from pathlib import Path

import pytest

from tests.downstream.commands import run, run_apart
from tests.downstream.projects import PROJECT, TARGET
from tests.downstream.trees import commit, edit, write_files

pytestmark = pytest.mark.usefixtures("known")
PACKAGE = TARGET.partition("/")[0]
NAMES = [
    *("model (1.py", "[.py", "*.py", r"(\w+)+!.py", "a|b.py", "+.py", "?.py", r"\.py", "{0}.py", "$(touch x).py"),
    *("-rf.py", "--.py", "a b.py", "'.py", '".py', "`.py", "%s.py", "..py", "#.py", "~.py", "é ☃.py", "a.b.py"),
    *("(?P<x>.py", "(?#.py", "x{1,}.py", ":(top)a.py", ":!a.py", "a\tb.py", "a\nb.py", "\u202e.py", "^.py", "-.pyw"),
]
COMMANDS = (
    *("scan", "plan", "check", "status", "migrate --to vendored", "migrate --to core", "update"),
    *("vendor spear-tts", "migrate --to package"),
)


def test_every_command_answers_whatever_call_sites_are_called(repo: Path) -> None:
    """Within seconds, without a traceback; what they are called is data for git and for every search."""
    lines = "import spear_tts_pytorch\n" + "w" * 40 + "!\n"
    write_files(repo, {f"{PACKAGE}/{name}": PROJECT.files[PROJECT.user] for name in NAMES})
    commit(write_files(repo, dict.fromkeys(NAMES, lines)))
    run_apart(COMMANDS, [repo])
    result = run("migrate", repo, "--to", "core", "--write")
    assert result.exit_code == 0, result.output
    for name in NAMES:
        assert "shared_distributed" in (repo / PACKAGE / name).read_text(), name
        assert (repo / name).read_text() == lines


@pytest.mark.parametrize("name", ["model (1.py", "[.py", "*.py", r"(\w+)+!.py", "-rf.py", ":!a.py", "a\nb.py"])
def test_every_command_answers_whatever_the_copy_is_called(repo: Path, name: str) -> None:
    """It is replaced, and no other file is."""
    shutil.move(repo / TARGET, repo / PACKAGE / name)
    edit(repo / PROJECT.user, "from spear_tts_pytorch.distributed import all_gather", "all_gather = None")
    commit(repo)
    path = f"{PACKAGE}/{name}"
    for command in ("plan", "migrate --to package", "vendor spear-tts"):
        result = run(*command.split(), "--path", path, repo)
        assert isinstance(result.exception, SystemExit | None), (command, result.exception)
    result = run("migrate", "--to", "vendored", "--path", path, "--write", repo)
    assert result.exit_code == 0, result.output
    assert "@generated" in (repo / path).read_text()
    assert sorted(found.name for found in repo.iterdir()) == [".git", "pyproject.toml", PACKAGE]
