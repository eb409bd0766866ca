# SPDX-License-Identifier: MIT
"""Files replaced in one step: what an edit in between does, which paths are refused. Crashes: test_safe_write."""

import os
from pathlib import Path

import pytest

from shared_distributed_tools.errors import RefusalError
from shared_distributed_tools.repo.files import checked, like, read, with_lf, write_atomically


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


@pytest.mark.parametrize("outside", ["../x.py", "/x.py", "a/../../x.py", ".", ".git/hooks/x.py", "sub/.git/x.py"])
def test_a_path_outside_the_repo_is_refused(tmp_path: Path, outside: str) -> None:
    """However it is written; the inside of .git too."""
    with pytest.raises(RefusalError, match="outside"):
        checked(tmp_path / "repo", outside)


def test_only_plain_files_are_written(tmp_path: Path) -> None:
    """No symlink on the way, no folder, no pipe."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "link.py").symlink_to(tmp_path / "elsewhere.py")
    for path, because in (
        ("folder", "not a plain file"),
        ("pipe.py", "not a plain file"),
        ("link.py", "symlink"),
        ("link/x.py", "symlink"),
        ("nowhere/x.py", "is not a folder"),
    ):
        with pytest.raises(RefusalError, match=because):
            read(checked(tmp_path, path))
    assert checked(tmp_path, "folder/../folder/x.py") == tmp_path / "folder/x.py"


def test_line_ends_follow_the_file() -> None:
    """LF is what is compared; written is what most of the file's lines have."""
    assert with_lf(b"a\r\nb\n\r\n") == b"a\nb\n\n"
    assert like(b"x\ny\n", b"a\r\nb\r\nc\n") == b"x\r\ny\r\n"
    assert like(b"x\n", b"a\nb\r\n") == like(b"x\n", None) == b"x\n"
