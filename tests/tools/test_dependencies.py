# SPDX-License-Identifier: MIT
"""One more requirement in a project's list, in its own layout; None where a person has to add it."""

from pathlib import Path

import pytest

from shared_distributed_tools.repo.dependencies import added, is_listed, name_in

ONE = ["x-distributed>=1.0"]
TWO = [f"{name} @ git+https://host/repo.git@v1#subdirectory={name}" for name in ("x-distributed", "shared-distributed")]
# file, what stands before the new requirements, each of these, what stands after them
EDITED = [
    ("pyproject.toml", '[project]\ndependencies = [\n  "torch",  # big', '\n  "{}",', "\n]\n\n[tool.x]\ny = 1\n"),
    ("pyproject.toml", '[project]\nname = "p"  # us\ndependencies = ["torch"', ', "{}"', "]\n"),
    ("requirements.txt", "# ours\ntorch>=2.0  # big\n-r base.txt\n", "{}\n", ""),
]


@pytest.mark.parametrize(("file", "before", "each", "after"), EDITED)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_requirement_is_added_in_the_lists_own_layout(
    tmp_path: Path, file: str, before: str, each: str, after: str, newline: str
) -> None:
    """One, and two; on a line each or on one line; comments, quotes, indentation and line ends stay."""
    (tmp_path / file).write_bytes((before + after).replace("\n", newline).encode())
    for wanted in (ONE, TWO):
        change = added(tmp_path, tmp_path, wanted)
        assert change is not None
        expected = before + "".join(map(each.format, wanted)) + after
        assert change.new == expected.replace("\n", newline).encode()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("README.md", ""),
        ("setup.py", "setup(install_requires = ['torch'])\n"),
        ("setup.py", "setup(\n"),
        ("setup.py", f"setup(install_requires = {'[' * 5000}{']' * 5000})\n"),
        ("setup.cfg", "[options]\ninstall_requires = file: requirements.txt\n"),
        ("requirements.txt", "torch==2.0 --hash=sha256:00\n"),
        ("requirements.txt", "torch \\\n"),
        ("pyproject.toml", "[project\n"),
        ("pyproject.toml", '[project]\ndynamic = ["dependencies"]\n'),
        ("pyproject.toml", '[project]\ndependencies = ["torch"]\ndynamic = ["dependencies"]\n'),
        ("pyproject.toml", '[project]\nname = "p"\n'),
        ("pyproject.toml", '[project]\ndependencies = "torch"\n'),
        ("pyproject.toml", "project = 3\n"),
        ("pyproject.toml", "[project]\ndynamic = 5\n"),
        ("pyproject.toml", '[project]\ndependencies = ["torch"]\n' + "# long\n" * 2**16),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "*"\n'),
    ],
)
def test_what_is_not_a_plain_list_is_left_to_a_person(tmp_path: Path, file: str, text: str) -> None:
    """Computed, empty, damaged, dynamic, or in another format; the file stays as it is."""
    (tmp_path / file).write_text(text)
    assert added(tmp_path, tmp_path, ONE) is None
    assert (tmp_path / file).read_text() == text


def test_the_file_that_lists_dependencies_is_the_one_changed(tmp_path: Path) -> None:
    """A pyproject for the build alone is passed over; one that calls them dynamic leaves it to a person."""
    (tmp_path / "requirements.txt").write_text("torch")
    for text, changed in (
        ('[build-system]\nrequires = ["setuptools"]\n', "requirements.txt"),
        ('[project]\ndynamic = ["dependencies"]\n', None),
        ('[project]\ndependencies = ["torch"]\n', "pyproject.toml"),
        ("[project\n", None),
    ):
        (tmp_path / "pyproject.toml").write_text(text)
        assert getattr(added(tmp_path, tmp_path, ONE), "path", None) == changed
    (tmp_path / "pyproject.toml").unlink()
    change = added(tmp_path, tmp_path, ONE)
    assert change is not None
    assert change.new == b"torch\nx-distributed>=1.0\n"
    (tmp_path / "setup.py").write_text("setup()\n")
    assert added(tmp_path, tmp_path, ONE) is None


def test_mixed_line_ends_of_a_manifest_are_kept(tmp_path: Path) -> None:
    """What is not shown as changed is not changed."""
    text = b'[project]\r\nname = "p"\ndependencies = [\n  "torch",\r\n]\r\n'
    (tmp_path / "pyproject.toml").write_bytes(text)
    change = added(tmp_path, tmp_path, ONE)
    assert change is not None
    assert change.new == text.replace(b"\r\n]", b'\r\n  "x-distributed>=1.0",\r\n]')


@pytest.mark.parametrize(
    ("file", "text", "listed"),
    [
        ("setup.cfg", "[options]\ninstall_requires =\n    X_Distributed>=1\n", True),
        ("setup.cfg", "[metadata]\nname = X_Distributed\n", False),
        ("requirements.txt", "-r base.txt\nx-distributed==1.0 --hash=sha256:00\n", True),
        ("requirements.txt", "# x-distributed\n", False),
        ("pyproject.toml", '[tool.poetry.dependencies]\nx-distributed = {git = "…"}\n', True),
        ("pyproject.toml", '[project]\ndependencies = ["x.distributed[fast]>=1"]\n', True),
        ("pyproject.toml", '[project]\nname = "x-distributed"\ndependencies = [\n  # "x-distributed",\n]\n', False),
        ("pyproject.toml", "project = 3\n", False),
        ("setup.py", "EXTRA = ['x-distributed']\nsetup(install_requires = BASE + EXTRA)\n", True),
        ("setup.py", "# 'x-distributed'\n", False),
        ("setup.py", "['x-distributed-tools', 'my-x-distributed', 'x']\n", False),
        ("notes.txt", "x-distributed\n", False),
    ],
)
def test_whether_a_distribution_is_listed(tmp_path: Path, file: str, text: str, listed: bool) -> None:
    """In any of the files that list dependencies, however its name is written."""
    (tmp_path / file).write_text(text)
    assert is_listed(tmp_path, "x-distributed") is listed


def test_a_requirement_names_a_distribution() -> None:
    """However its name is written."""
    assert [name_in(one) for one in (*ONE, "X.Distributed @ https://host/x.whl")] == ["x-distributed"] * 2
