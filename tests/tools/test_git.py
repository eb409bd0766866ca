# SPDX-License-Identifier: MIT
"""What git is asked, and what it answers. That nothing of the repository runs is in test_safe_run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared_distributed_tools.errors import RefusalError
from shared_distributed_tools.repo import git as git_module
from shared_distributed_tools.repo.git import Checkout, merge
from tests.downstream.projects import PROJECT
from tests.downstream.trees import commit, git, write_files


def around(folder: Path) -> Checkout:
    found = Checkout.around(folder)
    assert found is not None
    return found


@pytest.mark.parametrize("what", ["merge", "rebase", "rebase --apply", "cherry-pick", "revert", "am"])
def test_what_is_under_way(repo: Path, what: str) -> None:
    """A merge, a rebase, a cherry-pick, a revert or a patch that stopped at a conflict: by the name of the command."""
    git(repo, "branch", "other")
    commit(write_files(repo, {"a.py": "a = 3\n"}))
    git(repo, "checkout", "-q", "other")
    commit(write_files(repo, {"a.py": "a = 2\n"}))
    commit(write_files(repo, {"a.py": "a = 4\n"}))
    write_files(repo.parent, {"patch": git(repo, "format-patch", "--stdout", "-1", "@{-1}")})
    assert around(repo).under_way == ""
    given = {"revert": "HEAD~1", "am": "../patch"}.get(what, "@{-1}")
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, *what.split(), given)
    assert around(repo).under_way == what.split()[0]


def test_what_git_refuses_is_an_error_and_not_an_answer(
    repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An empty `.git`, another work tree, a binary file to merge, no git at all: never "not under git"."""
    (repo / "sub/.git").mkdir(parents=True)
    with pytest.raises(RefusalError, match="is not a git repository; git finds"):
        Checkout.around(repo / "sub")
    (repo / "sub/.git").rmdir()
    (repo / "sub/.git").write_text("gitdir: nowhere\n")
    with pytest.raises(RefusalError, match="git could not read"):
        Checkout.around(repo / "sub")
    git(repo, "checkout", "-q", "--detach")
    (repo / ".git/HEAD").write_text("1" * 40 + "\n")
    with pytest.raises(RefusalError, match="git could not read"):
        around(repo).committed(repo / "pyproject.toml")
    git(repo, "checkout", "-q", "-f", "-")
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


def test_a_bare_repository_in_the_folder_is_not_taken_for_its_own(repo: Path) -> None:
    """A clone may carry its files, with settings that make them look like the repository of the folder."""
    folder = repo / "sub"
    git(repo, "init", "-q", "--bare", str(folder))
    (folder / ".git").mkdir()
    (folder / "config").write_text(f"[core]\n\trepositoryformatversion = 0\n\tworktree = {folder}\n")
    assert git(folder, "rev-parse", "--show-toplevel").strip() == str(folder), "the attack itself does not work"
    with pytest.raises(RefusalError, match="is not a git repository; git finds"):
        Checkout.around(folder)


def test_git_is_asked_from_a_worktree_too(repo: Path) -> None:
    """There `.git` is a file."""
    git(repo, "worktree", "add", "-q", "../other")
    other = repo.parent / "other"
    assert around(other).committed(other / "pyproject.toml") == (repo / "pyproject.toml").read_bytes()


def test_why_git_did_not_answer(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took too long, could not be started, or a version is too large: each is said, and nothing else."""
    checkout, file = around(repo), repo / "pyproject.toml"
    with monkeypatch.context() as patch:
        patch.setattr(git_module, "LARGEST", 10)
        with pytest.raises(RefusalError, match="is larger than"):
            checkout.committed(file)
    with monkeypatch.context() as patch:
        patch.setattr(git_module, "_SECONDS", 1e-6)
        with pytest.raises(RefusalError, match="did not answer within"):
            checkout.committed(file)
    repo.rename(repo.parent / "gone")
    with pytest.raises(RefusalError, match=r"could not be started in .*: No such file or directory"):
        checkout.committed(file)


def test_git_is_never_the_repositorys_own_program(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its folder is in PATH; on Windows (simulated) only `git.exe` of a folder in PATH is started."""
    write_files(repo, {"bin/git": "#!/bin/sh\nexit 3\n", "git.BAT": "", "git.exe": ""})
    for program in ("bin/git", "git.BAT", "git.exe"):
        (repo / program).chmod(0o755)
    monkeypatch.chdir(repo)
    monkeypatch.setenv("PATH", f"{repo / 'bin'}{os.pathsep}.{os.pathsep}{os.environ['PATH']}")
    assert around(repo).head
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RefusalError, match="needs git"):
        Checkout.around(repo)
    elsewhere = write_files(repo.parent / "programs", {"git.exe": '#!/bin/sh\nexec /usr/bin/env git "$@"\n'})
    (elsewhere / "git.exe").chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{elsewhere}")
    assert git_module._program(repo) == str(elsewhere / "git.exe")


def test_the_content_of_head_is_what_git_stores_there(repo: Path) -> None:
    """Whatever `git replace` or grafts put in the place of an object; a link is not a file with its target's name."""
    file = repo / "pyproject.toml"
    committed, head = file.read_bytes(), git(repo, "rev-parse", "HEAD").strip()
    other = git(repo, "hash-object", "-w", "setup.cfg" if (repo / "setup.cfg").exists() else PROJECT.copy).strip()
    git(repo, "replace", git(repo, "rev-parse", "HEAD:pyproject.toml").strip(), other)
    assert git(repo, "show", "HEAD:pyproject.toml").encode() != committed, "the attack itself does not work"
    assert around(repo).committed(file) == committed
    (repo / "link.py").symlink_to("pyproject.toml")
    commit(repo)
    (repo / "link.py").unlink()
    (repo / "link.py").write_text("pyproject.toml")
    assert around(repo).committed(repo / "link.py") is None
    git(repo, "replace", head, "HEAD")
    assert around(repo).head == git(repo, "rev-parse", "HEAD").strip()


def test_names_are_not_patterns(repo: Path) -> None:
    """Square brackets and colons in a name mean themselves: no other file is asked about."""
    commit(write_files(repo, {"[ab].py": "1\n", "a.py": "2\n", ":!a.py": "3\n", "*.py": "4\n"}))
    for name in ("[ab].py", ":!a.py", "*.py"):
        assert around(repo).committed(repo / name) == (repo / name).read_bytes()
        assert not around(repo).is_staged(repo / name)


def test_versions_that_are_looked_at(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest first, on every branch, of merges and of the first commit too; not more than a bound."""
    commit(write_files(repo, {"a.py": "word 1\n"}))
    git(repo, "checkout", "-q", "-b", "other")
    commit(write_files(repo, {"b.py": "word 2\n"}))
    git(repo, "checkout", "-q", "-")
    commit(write_files(repo, {"a.py": "none\n"}))
    assert {*around(repo).blobs_with("word")} == {b"word 1\n", b"word 2\n", b"none\n"}
    monkeypatch.setattr(git_module, "_VERSIONS", 1)
    assert len([*around(repo).blobs_with("word")]) == 1


def test_variables_of_a_git_hook_are_not_followed(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They point at another repository or index; the user's own configuration still counts."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_CEILING_DIRECTORIES"):
        monkeypatch.setenv(name, str(repo / "nowhere"))
    assert around(repo).committed(repo / "pyproject.toml") == (repo / "pyproject.toml").read_bytes()
    (repo / "config").write_text("[safe\n")
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(repo / "config"))
            with pytest.raises(RefusalError, match="bad config"):
                Checkout.around(repo)
            if name == "GIT_CONFIG_SYSTEM":
                patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
                around(repo)
