# SPDX-License-Identifier: MIT
"""One principle for everything that writes: only what git's HEAD holds, shown first, and git undoes it."""

import os
import subprocess
from pathlib import Path

import pytest

from shared_distributed_tools.errors import RefusalError
from shared_distributed_tools.repo.changes import Change, carry_out, what_to_type
from tests.downstream.trees import commit, committed, git, write_files


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return committed(write_files(tmp_path / "repo", {"a.py": "a = 1\n", "b.py": "b = 1\n"}))


def change(repo: Path, path: str = "a.py", new: bytes = b"a = 2\n", *, write: bool = True) -> None:
    carry_out(repo, [Change.of(repo, path, new)], "changed", write=write)


def test_without_write_the_change_is_only_shown(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a diff."""
    change(repo, write=False)
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-2:] == ["-a = 1", "+a = 2"]
    assert shown.err == "1 file would change; --write makes the change\n"
    assert git(repo, "status", "--short") == ""


def not_a_repo(folder: Path) -> None:
    (folder / ".git").rename(folder.parent / "away")


def no_commit(folder: Path) -> None:
    not_a_repo(folder)
    git(folder, "init", "-q")


def not_tracked(folder: Path) -> None:
    git(folder, "rm", "-q", "--cached", "a.py")
    git(folder, "commit", "-q", "-m", "forgotten")


def not_committed(folder: Path) -> None:
    (folder / "a.py").write_text("mine\n")


def staged_only(folder: Path) -> None:
    (folder / "a.py").write_text("mine\n")
    git(folder, "add", "a.py")
    (folder / "a.py").write_text("a = 1\n")


def added_only(folder: Path) -> None:
    not_tracked(folder)
    git(folder, "add", "a.py")


def merging(folder: Path) -> None:
    (folder / ".git/MERGE_HEAD").write_text(git(folder, "rev-parse", "HEAD"))


@pytest.mark.parametrize(
    ("spoil", "because", "helps"),
    [
        (not_a_repo, "is in no git repository", "git init && git add -A && git commit -m 'as it was'"),
        (no_commit, "has no commit yet", "git add -A && git commit -m 'as it was'"),
        (not_tracked, "is not committed", "git add -- a.py && git commit -m 'as it was' -- a.py"),
        (added_only, "is not committed", "git add -- a.py && git commit -m 'as it was' -- a.py"),
        (not_committed, "has changes that are not committed", "git restore --staged --worktree -- a.py"),
        (staged_only, "has changes that are not committed", "git restore --staged --worktree -- a.py"),
        (merging, "a merge is under way", "git merge --abort"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_git_could_not_undo_is_refused(repo: Path, spoil: object, because: str, helps: str) -> None:
    """With the command that helps: once it ran, the change is made."""
    spoil(repo)  # type: ignore[operator]
    before = (repo / "a.py").read_bytes()
    with pytest.raises(RefusalError, match=because) as error:
        change(repo)
    assert helps.removeprefix("git merge ") in str(error.value)
    assert (repo / "a.py").read_bytes() == before
    shell(repo, helps)
    change(repo)
    assert (repo / "a.py").read_bytes() == b"a = 2\n"


def shell(repo: Path, command: str) -> None:
    """As a person types it."""
    identity = {
        f"GIT_{who}_{what}": "x@example.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["sh", "-ec", command], cwd=repo, env=environment, capture_output=True, check=True)


def test_changes_elsewhere_do_not_matter(repo: Path) -> None:
    """Staged or not; a file that is not there yet may be made."""
    (repo / "b.py").write_text("mine\n")
    (repo / "c.py").write_text("mine\n")
    git(repo, "add", "c.py")
    change(repo)
    change(repo, "d.py")
    assert (repo / "d.py").read_bytes() == b"a = 2\n"


def test_what_is_printed_keeps_the_change_and_nothing_else(repo: Path) -> None:
    """Typed as it stands: the commit has the changed and the new file; what else was staged stays staged."""
    (repo / "b.py").write_text("mine\n")
    git(repo, "add", "b.py")
    changes = [Change.of(repo, "a.py", b"a = 2\n"), Change.of(repo, "new file.py", b"n = 1\n")]
    carry_out(repo, changes, "it's changed", write=True)
    keep, _, _ = (line.partition(":")[2].strip() for line in what_to_type(changes, "it's changed").splitlines())
    shell(repo, keep)
    assert git(repo, "show", "--format=%s", "--name-only") == "it's changed\n\na.py\nnew file.py\n"
    assert git(repo, "status", "--short") == "M  b.py\n"
    shell(repo, "git commit -q -m other && git revert --no-edit HEAD~1")
    assert ((repo / "a.py").read_text(), (repo / "b.py").read_text()) == ("a = 1\n", "mine\n")
    assert not (repo / "new file.py").exists()


@pytest.mark.parametrize("staged", [False, True])
def test_what_is_printed_undoes_the_change_before_the_commit(repo: Path, staged: bool) -> None:
    """The new file too, which a restore would not name; whether it was added or not."""
    changes = [Change.of(repo, "a.py", b"a = 2\n"), Change.of(repo, "n.py", b"n = 1\n")]
    carry_out(repo, changes, "m", write=True)
    if staged:
        git(repo, "add", "-A")
    _, undo, _ = (line.partition(":")[2].strip() for line in what_to_type(changes, "m").splitlines())
    shell(repo, undo)
    assert git(repo, "status", "--short") == ""


def test_one_refusal_leaves_every_file_alone(repo: Path) -> None:
    """All are looked at before the first is written."""
    (repo / "b.py").write_text("mine\n")
    with pytest.raises(RefusalError, match=r"b\.py has changes"):
        carry_out(repo, [Change.of(repo, "a.py", b""), Change.of(repo, "b.py", b"")], "m", write=True)
    assert (repo / "a.py").read_text() == "a = 1\n"


def test_a_windows_checkout_is_committed(repo: Path) -> None:
    """CRLF in the work tree and LF in git is how git checks files out there."""
    (repo / "a.py").write_bytes(b"a = 1\r\n")
    change(repo, new=b"a = 2\r\n")
    commit(repo)
    assert (repo / "a.py").read_bytes() == b"a = 2\r\n"
