# SPDX-License-Identifier: MIT
"""Which paths are refused, and line ends. How files are replaced: test_safe_write."""

import os
from pathlib import Path

import pytest

from shared_distributed_tools.errors import RefusalError
from shared_distributed_tools.repo.files import checked, like, read, with_lf


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


def test_mixed_line_ends_stay_line_by_line() -> None:
    """What is not changed keeps the end that it has, and is in no diff; a lone carriage return ends no line."""
    assert like(b"a\nb\nnew\nc\n", b"a\r\nb\nc\r\n") == b"a\r\nb\nnew\r\nc\r\n"
    assert like(b"a\nnew\nb\nc\nd", b"a\nb\r\nc\nd") == b"a\nnew\nb\r\nc\nd"
    assert like(b"a\rb\nx\n", b"a\rb\nc\r\nd\n") == b"a\rb\nx\n"
