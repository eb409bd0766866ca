# SPDX-License-Identifier: MIT
"""Nothing is written that was not shown, nothing is lost, and git brings everything back. Refusals: test_changes."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

from shared_distributed_tools.errors import RefusalError
from shared_distributed_tools.render import render
from shared_distributed_tools.repo import changes, files
from shared_distributed_tools.repo.changes import Change, carry_out
from shared_distributed_tools.repo.git import Checkout
from tests.downstream.commands import done, refused, run
from tests.downstream.projects import PROJECT, TARGET
from tests.downstream.trees import change_of, commit, committed, git, write_files

pytestmark = pytest.mark.usefixtures("known")


def temporary_files(folder: Path) -> list[Path]:
    """What an interrupted write left, `.git` included."""
    return list(folder.rglob(".adapters-*"))


def test_only_the_files_of_the_stage_are_written(repo: Path) -> None:
    """Whatever lies around them, however they are linked, with the mode of a plain file."""
    (repo / TARGET).chmod(0o4755)
    commit(write_files(repo, {"other.py": "x = 1\n"}))
    (repo / "second name.txt").hardlink_to(repo / TARGET)
    times = {path: path.stat().st_mtime_ns for path in repo.rglob("*.*") if path.is_file()}
    done("migrate", repo, "--to", "package", "--write")
    written = {path.relative_to(repo).as_posix() for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert written == {TARGET, "pyproject.toml"}
    assert (repo / TARGET).stat().st_mode & 0o7777 == 0o755
    assert (repo / "second name.txt").read_text() == PROJECT.files[TARGET]


# ------------------------------------------------------------------ at any step


@contextmanager
def before_step(step: int, act: Callable[[], object]) -> Iterator[list[int]]:
    """Does something before one of the lines of `repo.files` that run; the lines that ran."""
    lines: list[int] = []

    def trace(frame: FrameType, event: str, _: object) -> object:
        if not frame.f_globals["__name__"].endswith("repo.files"):
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == step:
                act()
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        yield lines
    finally:
        sys.settrace(None)


@pytest.mark.parametrize(("old", "theirs"), [(b"old\n", b"theirs\n"), (None, b"theirs\n"), (b"old\n", None)])
def test_an_edit_saved_in_between_is_kept(tmp_path: Path, old: bytes | None, theirs: bytes | None) -> None:
    """At whatever step: saved, made or deleted, up to the comparison that is the last one before the replacement."""
    file, kept, lost = tmp_path / "a.py", 0, 0

    def put(content: bytes | None) -> None:
        file.unlink(missing_ok=True) if content is None else file.write_bytes(content)

    for step in range(1, 1000):
        put(old)
        with before_step(step, lambda: put(theirs)) as lines, suppress(RefusalError):
            files.write_atomically(file, b"new\n", old)
        if len(lines) < step:
            break
        kept += files.read(file) == theirs
        lost += files.read(file) == b"new\n"
        assert temporary_files(tmp_path) == []
    assert kept >= 15
    assert lost <= (5 if theirs else 12)  # once the comparison has read the file, or opened a file that is deleted then


def test_a_kill_at_any_step_leaves_old_or_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every line that writes two files: git restores both, `git add -A` takes no temporary file.

    A killed run leaves one at most, in the git directory, and the next run removes it.
    """
    repo = committed(write_files(tmp_path / "repo", {"a.py": "old\n"}))
    checkout = Checkout.around(repo)
    monkeypatch.setattr(changes, "checkout_of", lambda _: checkout)  # what only reads is not tried again at every step
    for name in ("refuse_unless_held", "print_diff", "echo"):
        monkeypatch.setattr(changes, name, lambda *_, **__: None)
    old = {"a.py": b"old\n", "b.py": None}
    new = {"a.py": b"new\n", "b.py": b"made\n"}
    seen, litter = set(), set()
    for step in range(1, 1000):
        child = os.fork()
        if child == 0:
            with before_step(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                carry_out(repo, [Change(name, old[name], new[name]) for name in old], "m", write=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        there = {name: files.read(repo / name) for name in old}
        assert all(there[name] in (old[name], new[name]) for name in old), f"step {step}: neither old nor new"
        seen.add(tuple(there[name] == new[name] for name in old))
        litter.add(len(temporary_files(repo / ".git")))
        assert not temporary_files(repo) or temporary_files(repo)[0].parent == repo / ".git"
        if status == 0:
            break
        if there != old:
            git(repo, "add", "-A")
            assert set(git(repo, "diff", "--cached", "--name-only").split()) <= set(old)
            git(repo, "restore", "--staged", "--worktree", "a.py")
            git(repo, "rm", "-q", "--cached", "--ignore-unmatch", "b.py")
            (repo / "b.py").unlink(missing_ok=True)
            assert (repo / "a.py").read_bytes() == old["a.py"]
    assert step > 60
    assert (seen, litter) == ({(False, False), (True, False), (True, True)}, {0, 1})
    assert temporary_files(repo) == []


def test_an_edit_saved_while_the_diff_is_read_is_kept(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown was another change: refused, and nothing else is written either."""

    def save(_: str) -> None:
        (repo / TARGET).write_text("theirs\n")

    monkeypatch.setattr(changes, "print_diff", save)
    assert refused(run("migrate", repo, "--to", "package", "--write"), "was changed while this ran")
    assert (repo / TARGET).read_text() == "theirs\n"
    assert git(repo, "status", "--short") == f" M {TARGET}\n"


def test_a_git_directory_on_another_file_system(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a rename from it fails: the temporary file lies beside the file, and the next run removes what is left."""
    rename = Path.replace

    def across(source: Path, target: Path) -> Path:
        if source.parent != target.parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", across)
    write_files(repo, {".git/.adapters-1.tmp": "", "spear_tts_pytorch/.adapters-2.tmp": ""})
    done("vendor", "spear-tts", repo, "--write")
    assert (repo / TARGET).read_text() == render("spear-tts")
    assert temporary_files(repo) == []


@pytest.mark.parametrize("failing", ["chmod", "replace"])
def test_a_write_that_fails_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A full disk, a folder that may not be written to: the old file is whole, and nothing lies beside it."""
    repo = committed(write_files(tmp_path / "repo", {"a.py": "a = 1\n"}))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, failing, fail)
    with pytest.raises(RefusalError, match="No space left on device; it is as it was"):
        carry_out(repo, [change_of(repo, "a.py", b"a = 2\n")], "m", write=True)
    assert ((repo / "a.py").read_text(), temporary_files(repo)) == ("a = 1\n", [])
