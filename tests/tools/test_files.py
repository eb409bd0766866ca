# SPDX-License-Identifier: MIT
"""Files replaced in one step: what a crash leaves, what an edit in between does, which paths are refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared_distributed_tools.errors import RefusalError
from shared_distributed_tools.repo.files import checked, like, read, repo_root, with_lf, write_atomically

KILLED = """
import os, resource, signal, sys
from pathlib import Path
from shared_distributed_tools.repo.files import write_atomically

file = Path(sys.argv[1])
old, new = file.read_bytes(), b"new\\n" * 1000
seen = set()
for moment in range(1000):
    child = os.fork()
    if child == 0:
        count = 0
        if moment == 0:  # dies of the first write that goes past a kilobyte
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        def trace(frame, event, _):
            global count
            if not frame.f_globals["__name__"].endswith("repo.files"):
                return None
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace
        sys.settrace(trace)
        write_atomically(file, new, old)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    seen.add(file.read_bytes() == new)
    assert file.read_bytes() in (old, new), f"moment {moment}: neither the old nor the new file"
    if status == 0:
        break
    file.write_bytes(old)
print(moment, sorted(seen))
"""


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    """In the middle of a write, and before every line of the code that writes."""
    file = tmp_path / "distributed.py"
    file.write_text("old\n" * 1000)
    command = [sys.executable, "-c", KILLED, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    moments, states = done.stdout.split(maxsplit=1)
    assert int(moments) > 15
    assert states.strip() == "[False, True]"


def test_somebody_elses_edit_in_between_is_not_lost(tmp_path: Path) -> None:
    """Saved after the diff was shown, made where there was no file, or deleted: left as it is, and said."""
    file = tmp_path / "distributed.py"
    for expected, there in ((b"old\n", b"theirs\n"), (None, b"theirs\n"), (b"old\n", None)):
        file.unlink(missing_ok=True)
        if there is not None:
            file.write_bytes(there)
        with pytest.raises(RefusalError, match="was changed while this ran"):
            write_atomically(file, b"new\n", expected)
        assert read(file) == there
        assert [path for path in tmp_path.iterdir() if path != file] == []


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A full disk, or an interrupt: the old file whole, no temporary file beside it."""
    file = tmp_path / "distributed.py"
    file.write_bytes(b"old\n")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os if failing == "fsync" else Path, failing, fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, b"new\n", b"old\n")
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (b"old\n", [file])


def test_permissions_are_kept_and_the_old_file_is_never_written_to(tmp_path: Path) -> None:
    """It is replaced by another: a second name for the old one gives the old content. A new file has the usual ones."""
    file = tmp_path / "distributed.py"
    file.write_bytes(b"old\n")
    file.chmod(0o751)
    (tmp_path / "second name").hardlink_to(file)
    write_atomically(file, b"new\n", b"old\n")
    assert (tmp_path / "second name").read_bytes() == b"old\n"
    assert file.stat().st_mode & 0o777 == 0o751
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "made.py", b"", None)
    assert (tmp_path / "made.py").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("outside", ["../x.py", "/x.py", "a/../../x.py", ".", ".git/hooks/x.py", "sub/.git/x.py"])
def test_a_path_outside_the_repo_is_refused(tmp_path: Path, outside: str) -> None:
    """However it is written; the inside of .git too."""
    with pytest.raises(RefusalError, match="outside"):
        checked(tmp_path / "repo", outside)


def test_only_plain_files_are_written(tmp_path: Path) -> None:
    """No symlink on the way, no folder, no pipe; and a repo is a folder."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "link.py").symlink_to(tmp_path / "elsewhere.py")
    for path, because in (
        ("folder", "is a folder"),
        ("pipe.py", "not a plain file"),
        ("link.py", "symlink"),
        ("link/x.py", "symlink"),
        ("nowhere/x.py", "is not a folder"),
    ):
        with pytest.raises(RefusalError, match=because):
            checked(tmp_path, path)
    assert checked(tmp_path, "folder/../folder/x.py") == tmp_path / "folder/x.py"
    with pytest.raises(RefusalError, match="is not a folder"):
        repo_root(tmp_path / "pipe.py")


def test_line_ends_follow_the_file() -> None:
    """LF is what is compared; written is what most of the file's lines have."""
    assert with_lf(b"a\r\nb\n\r\n") == b"a\nb\n\n"
    assert like(b"x\ny\n", b"a\r\nb\r\nc\n") == b"x\r\ny\r\n"
    assert like(b"x\n", b"a\nb\r\n") == like(b"x\n", None) == b"x\n"
