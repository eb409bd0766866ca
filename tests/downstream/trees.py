# SPDX-License-Identifier: MIT
"""Builds trees on disk: files, a git history, sources that a test may change."""

import os
import shlex
import shutil
import subprocess
import textwrap
from pathlib import Path

from shared_distributed_tools.catalog import root
from shared_distributed_tools.repo.changes import Change
from shared_distributed_tools.repo.files import read

CORE = Path("shared/distributed/src/shared_distributed")
COPY = "pkg/distributed.py"  # of `package`
MINE = "# a line of the downstream project's own\n"


def git(repo: Path, *arguments: str) -> str:
    """Run git in a repo."""
    return shell(repo, shlex.join(["git", *arguments]))


def shell(repo: Path, command: str) -> str:
    """Run a command in a repo as a person types it, whatever this machine's own configuration of git says."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("GIT_AUTHOR", "GIT_COMMITTER"):
        environment |= {f"{who}_NAME": "t", f"{who}_EMAIL": "t@example.invalid"}
    words = ["sh", "-ec", command]
    return subprocess.run(words, cwd=repo, env=environment, capture_output=True, text=True, check=True).stdout


def commit(repo: Path) -> None:
    """Commit everything there is."""
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "--allow-empty", "-m", "state")


def write_files(folder: Path, files: dict[str, str]) -> Path:
    """Files by their paths in a folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def package(folder: Path, code: str, **others: str) -> Path:
    """A package `pkg` with a copy, one file that uses it, and others by name."""
    texts = {"__init__": "", "distributed": "", "use": code, **others}
    return write_files(folder, {f"pkg/{name}.py": textwrap.dedent(text) for name, text in texts.items()})


def committed(repo: Path) -> Path:
    """A folder as a repo, everything in its first commit."""
    git(repo, "init", "-q")
    commit(repo)
    return repo


def change_of(repo: Path, path: str, new: bytes) -> Change:
    """The change from what a file holds now."""
    return Change(path, read(repo / path), new)


def copy_sources(folder: Path) -> Path:
    """The sources as a tree of their own, for a test to change."""
    ignore = shutil.ignore_patterns("__pycache__", "tests")
    for part in ("shared", "packages"):
        shutil.copytree(root() / part, folder / part, ignore=ignore)
    return folder


def newer(tree: Path, word: str = "Newer") -> Path:
    """Sources whose rendered files say one word more, near the top: in the docstring of the first error."""
    module = tree / CORE / "_errors.py"
    module.write_text(module.read_text().replace('    """', f'    """{word}: ', 1))
    return tree


def edit_at_the_end(file: Path) -> None:
    """A local edit, far from what `newer` changes."""
    file.write_text(file.read_text() + MINE)


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text that must be there, everywhere."""
    text = path.read_text()
    assert old in text, f"{old!r} is not in {path.name}"
    path.write_text(text.replace(old, new))
