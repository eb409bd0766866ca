# SPDX-License-Identifier: MIT
"""What git is asked, and what it answers. That nothing of the repository runs is in test_safe_run."""

import subprocess
from pathlib import Path

import pytest

from shared_distributed_tools.errors import RefusalError
from shared_distributed_tools.repo.git import Checkout, merge
from tests.downstream.trees import commit, git, write_files


def around(folder: Path) -> Checkout:
    found = Checkout.around(folder)
    assert found is not None
    return found


@pytest.mark.parametrize("what", ["merge", "rebase", "cherry-pick"])
def test_what_is_under_way(repo: Path, what: str) -> None:
    """A merge, a rebase or a cherry-pick that stopped at a conflict."""
    git(repo, "branch", "other")
    commit(write_files(repo, {"a.py": "a = 3\n"}))
    git(repo, "checkout", "-q", "other")
    commit(write_files(repo, {"a.py": "a = 2\n"}))
    assert around(repo).under_way == ""
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, what, "@{-1}")
    assert around(repo).under_way == what


def test_what_git_refuses_is_an_error_and_not_an_answer(
    repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An empty `.git`, another work tree, a binary file to merge, no git at all: never "not under git"."""
    (repo / "sub/.git").mkdir(parents=True)
    with pytest.raises(RefusalError, match="git could not read"):
        Checkout.around(repo / "sub")
    git(repo, "config", "core.worktree", str(tmp_path))
    with pytest.raises(RefusalError, match="is not a git repository; git finds"):
        Checkout.around(repo)
    git(repo, "config", "--unset", "core.worktree")
    with pytest.raises(RefusalError, match="Cannot merge binary files"):
        merge(b"mine\0", b"base\n", b"theirs\n")
    (repo / ".git/HEAD").unlink()
    with pytest.raises(RefusalError, match="git could not read"):
        Checkout.around(repo)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RefusalError, match="needs git"):
        Checkout.around(repo)


def test_variables_of_a_git_hook_are_not_followed(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They point at another repository or index; the user's own configuration still counts."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(repo / "nowhere"))
    assert around(repo).committed(repo / "pyproject.toml") == (repo / "pyproject.toml").read_bytes()
    (repo / "config").write_text("[safe\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(repo / "config"))
    with pytest.raises(RefusalError, match="bad config"):
        Checkout.around(repo)
