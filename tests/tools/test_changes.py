# SPDX-License-Identifier: MIT
"""One principle for everything that writes: only what git's HEAD holds, shown first, and git undoes it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from shared_distributed_tools.errors import RefusalError
from shared_distributed_tools.repo import changes
from shared_distributed_tools.repo.changes import carry_out, unified, what_to_type
from shared_distributed_tools.repo.files import read
from tests.downstream.trees import change_of, committed, git, shell, write_files


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return committed(write_files(tmp_path / "repo", {"a.py": "a = 1\n", "b.py": "b = 1\n"}))


def change(repo: Path, path: str = "a.py") -> None:
    carry_out(repo, [change_of(repo, path, b"a = 2\n")], "changed", write=True)


AS_IT_WAS = "git add -A && git commit -m 'as it was'"
COMMIT = "git add -- a.py && git commit -m 'as it was' -- a.py"
FORGOTTEN = "git rm -q --cached a.py && git commit -q -m forgotten"
RESTORE = "git restore --staged --worktree -- a.py"
REPLACED = "git replace $(git rev-parse HEAD:a.py) $(git hash-object -w a.py)"
STORED = "echo '*.py {}' > .gitattributes && git add -A && git commit -q -m attributes"


@pytest.mark.parametrize(
    ("spoil", "because", "helps"),
    [
        ("mv .git ../away", "is in no git repository", f"git init && {AS_IT_WAS}"),
        ("mv .git ../away && git init -q", "has no commit yet", AS_IT_WAS),
        (FORGOTTEN, "is not committed", COMMIT),
        (f"{FORGOTTEN} && git add a.py", "is not committed", COMMIT),
        ("echo mine > a.py", "has changes that are not committed", RESTORE),
        ("echo mine > a.py && git add a.py && echo 'a = 1' > a.py", "has changes that are not committed", RESTORE),
        ("git rev-parse HEAD > .git/MERGE_HEAD", "a merge is under way", "git merge --abort"),
        ("chmod 444 a.py", "is read-only", "chmod u+w -- a.py"),
        ("rm a.py", "is committed, but not here", "git restore -- a.py"),
        (STORED.format("filter=lfs"), r"is not stored in git as it is here \(filter=lfs in .gitattributes\)", ""),
        (STORED.format("ident"), r"is not stored in git as it is here \(ident=set in", ""),
        (STORED.format("working-tree-encoding=latin1"), r"is not stored in git as it is here \(working-tree-enc", ""),
        ("git update-index --skip-worktree a.py", "is marked skip-worktree", "git update-index --no-skip-worktree"),
        ("git update-index --assume-unchanged a.py", "is marked assume-unchanged", "git update-index --no-assume-unc"),
        (
            "git update-index --assume-unchanged a.py; git update-index --skip-worktree a.py; echo mine > a.py",
            "is marked skip-worktree",
            "git update-index --no-skip-worktree -- a.py",
        ),
        (f"echo mine > a.py && {REPLACED}", "would come back as another", "git replace -d"),
        (f"echo mine > a.py && {REPLACED} && echo 'a = 1' > a.py", "would come back as another", "git replace -d"),
        ("printf broken > .git/index", "git could not read", ""),
        ("rm .git/objects/*/*", "git could not read", ""),
    ],
)
def test_what_git_could_not_undo_is_refused(repo: Path, spoil: str, because: str, helps: str) -> None:
    """With the command that helps: once it ran, the change is made. What git cannot answer is refused too."""
    shell(repo, spoil)
    before = read(repo / "a.py")
    with pytest.raises(RefusalError, match=because) as error:
        change(repo)
    assert helps.removeprefix("git merge ") in str(error.value)
    assert read(repo / "a.py") == before
    if "update-index" in helps or "replace" in helps:
        (helps,) = re.findall("`(.*)`", str(error.value))
        shell(repo, helps)
        if (repo / "a.py").read_text() == "mine\n":  # the other mark, and then the edit, are refused next
            return
    elif helps:
        shell(repo, helps)
    if helps:
        change(repo)
        assert (repo / "a.py").read_bytes() == b"a = 2\n"


MODULE = """
git clone -q . ../module
git -c protocol.file.allow=always submodule add -q "$PWD/../module" sub
git commit -q -m sub
"""


@pytest.mark.parametrize(
    "spoil", ["git init -q sub", MODULE, f"{MODULE} git submodule deinit -q --all && touch sub/a.py"]
)
def test_a_file_of_another_repository_is_refused(repo: Path, spoil: str) -> None:
    """Of one inside this one, or of a submodule, checked out or not."""
    shell(repo, spoil)
    with pytest.raises(RefusalError, match="is in a repository of its own"):
        change(repo, "sub/a.py")


def test_changes_elsewhere_do_not_matter(repo: Path) -> None:
    """Staged or not; a file that is not there yet may be made. CRLF here and LF in git is how Windows has files."""
    shell(repo, "echo mine | tee b.py c.py && git add c.py && printf 'a = 1\\r\\n' > a.py")
    change(repo)
    change(repo, "d.py")
    assert (repo / "d.py").read_bytes() == b"a = 2\n"


def test_what_is_printed_keeps_the_change_and_nothing_else(repo: Path) -> None:
    """Typed as it stands: the commit has the changed and the new file; what else was staged stays staged."""
    shell(repo, "echo mine > b.py && git add b.py")
    wanted = [change_of(repo, "a.py", b"a = 2\n"), change_of(repo, "new file.py", b"n = 1\n")]
    carry_out(repo, wanted, "it's changed", write=True)
    keep, _, _ = (line.partition(":")[2].strip() for line in what_to_type(wanted, "it's changed").splitlines())
    shell(repo, keep)
    assert git(repo, "show", "--format=%s", "--name-only") == "it's changed\n\na.py\nnew file.py\n"
    assert git(repo, "status", "--short") == "M  b.py\n"
    shell(repo, "git commit -q -m other && git revert --no-edit HEAD~1")
    assert ((repo / "a.py").read_text(), (repo / "b.py").read_text()) == ("a = 1\n", "mine\n")
    assert not (repo / "new file.py").exists()


@pytest.mark.parametrize("staged", [False, True])
def test_what_is_printed_undoes_the_change_before_the_commit(repo: Path, staged: bool) -> None:
    """The new file too, which a restore would not name; whether it was added or not."""
    wanted = [change_of(repo, "a.py", b"a = 2\n"), change_of(repo, "n.py", b"n = 1\n")]
    carry_out(repo, wanted, "m", write=True)
    if staged:
        git(repo, "add", "-A")
    _, undo, _ = (line.partition(":")[2].strip() for line in what_to_type(wanted, "m").splitlines())
    shell(repo, undo)
    assert git(repo, "status", "--short") == ""


def test_one_refusal_leaves_every_file_alone(repo: Path) -> None:
    """All are looked at before the first is written."""
    (repo / "b.py").write_text("mine\n")
    with pytest.raises(RefusalError, match=r"b\.py has changes"):
        carry_out(repo, [change_of(repo, "a.py", b""), change_of(repo, "b.py", b"")], "m", write=True)
    assert (repo / "a.py").read_text() == "a = 1\n"


def stop_at(number: int, error: BaseException) -> Callable[..., None]:
    """A write that stops a run at one of its files."""
    real, written = changes.write_atomically, []

    def write(*arguments: object) -> None:
        written.append(arguments)
        if len(written) == number:
            raise error
        real(*arguments)  # type: ignore[arg-type]

    return write


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RefusalError("No space left on device"), MemoryError()])
def test_a_run_that_stops_midway_names_what_it_changed_and_the_undo(
    repo: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever stopped it; the command that it prints brings everything back."""
    wanted = [change_of(repo, "a.py", b"a = 2\n"), change_of(repo, "n.py", b"n = 1\n"), change_of(repo, "b.py", b"b\n")]
    for number, names in ((3, ["a.py", "n.py"]), (2, ["a.py"]), (1, [])):
        with monkeypatch.context() as patch:
            patch.setattr(changes, "write_atomically", stop_at(number, error))
            with pytest.raises(type(error)):
                carry_out(repo, wanted, "m", write=True)
        said = capsys.readouterr().err
        assert [line.strip() for line in said.splitlines() if line.startswith("  ")] == names
        assert (f"{len(names)} of 3 files changed" if names else "no file is changed") in said
        shell(repo, said.partition("to undo it: ")[2] if names else "true")
        assert git(repo, "status", "--short") == ""


def test_a_new_file_that_the_repo_ignores_is_kept_and_undone_as_printed(repo: Path) -> None:
    """Git adds such a file by force only."""
    shell(repo, "echo n.py > .gitignore && git add -A && git commit -q -m ignored")
    wanted = [change_of(repo, "n.py", b"n = 1\n")]
    carry_out(repo, wanted, "m", write=True)
    keep, undo, _ = (line.partition(":")[2].strip() for line in what_to_type(wanted, "m").splitlines())
    shell(repo, undo)
    assert not (repo / "n.py").exists()
    carry_out(repo, wanted, "m", write=True)
    shell(repo, keep)
    assert git(repo, "show", "HEAD:n.py") == "n = 1\n"


def test_a_diff_of_lines_that_are_alike_shows_the_change_alone() -> None:
    """With the lines around it and where it is, however many others are equal; it applies to what it was made from."""
    many = b"\n" * 100_000
    shown = unified(b"a\n" + many + b"b\n", b"c\n" + many + b"b\n", "old", "new").split("\n")
    assert shown == ["--- old", "+++ new", "@@ -1,4 +1,4 @@", "-a", "+c", " ", " ", " "]
    shown = unified(many + b"b\n", many + b"c\nd\n", "old", "new").split("\n")
    assert shown[2:] == ["@@ -99998,4 +99998,5 @@", " ", " ", " ", "-b", "+c", "+d"]
    assert unified(many, many, "old", "new") == ""
    assert unified(b"", b"a\n", "old", "new").endswith("@@ -0,0 +1 @@\n+a")
