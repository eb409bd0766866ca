# SPDX-License-Identifier: MIT
"""What git is asked. No other module starts a program, and nothing that lies in a repository runs.

Only commands that read are used, and of these only plumbing: it runs no hook, filter, textconv, pager or program for
signatures, whatever a repository configures. Flags and environment stop what is left: a monitor of the file system,
another object in the place of one, names of files that git would take for patterns, and a remote that is asked for a
missing object. tests/tools has an attack for each. The user's own configuration counts, `safe.directory` above all.
What git cannot answer is a RefusalError, never "not there".
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..errors import RefusalError
from .files import LARGEST, with_lf

_FLAGS = ("-c", "core.fsmonitor=false", "--literal-pathspecs", "--no-replace-objects")
# of git's variables, those by which users say where their own configuration is; a hook sets others
_USERS_OWN = frozenset({"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"})
_SET = {"GIT_ALLOW_PROTOCOL": "none"}  # missing objects are not fetched: a remote may be a command
_SECONDS = 300  # for one answer
_VERSIONS = 1000  # of a file, that are looked at
# a file or folder in the git directory -> what is under way while it is there
_UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply/applying": "am",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
}
_CONVERSIONS = ("filter", "ident", "working-tree-encoding")  # attributes by which git changes a file's bytes


@dataclass(frozen=True)
class Checkout:
    """A work tree and its git directory. Paths given to it are full paths inside the tree."""

    root: Path
    git_dir: Path

    @classmethod
    def around(cls, folder: Path) -> "Checkout | None":
        """The work tree around a folder: the nearest folder above with a `.git`. RefusalError if git refuses it."""
        folder = folder.resolve()
        root = next((one for one in (folder, *folder.parents) if os.path.lexists(one / ".git")), None)
        if root is None:
            return None
        # git finds the repository itself, here and later: this way it checks who owns it
        answer = os.fsdecode(_run(root, "rev-parse", "--absolute-git-dir", "--show-toplevel").stdout)
        git_dir, is_here, _ = answer.rpartition(f"\n{root.as_posix()}\n")
        if not is_here or Path(git_dir) == root:  # files of a bare repository may lie in the folder
            msg = f"{root / '.git'} is not a git repository; git finds {' for '.join(answer.splitlines())} instead"
            raise RefusalError(msg)
        return cls(root, Path(git_dir))

    @property
    def head(self) -> str | None:
        """The commit that is checked out; None before the first one."""
        return self._ask("rev-parse", "--verify", "--quiet", "HEAD", allowed=(0, 1)).decode().strip() or None

    @property
    def under_way(self) -> str:
        """The merge, rebase, cherry-pick or revert that is not finished; empty if there is none."""
        return next((what for name, what in _UNDER_WAY.items() if os.path.lexists(self.git_dir / name)), "")

    @property
    def is_shallow(self) -> bool:
        """Whether older commits are missing."""
        return self._ask("rev-parse", "--is-shallow-repository").strip() == b"true"

    def committed(self, path: Path) -> bytes | None:
        """A file's content in HEAD; None if HEAD has no such file."""
        ids = self._in_head(path)
        return self.blob(ids[0]) if ids else None

    def replaced(self, path: Path) -> str:
        """The id of a file's content in HEAD, if git would give another one in its place; else empty."""
        for name in self._in_head(path):
            if self._ask("rev-parse", "--verify", "--quiet", f"refs/replace/{name}", allowed=(0, 1)):
                return name
        return ""

    def is_staged(self, path: Path) -> bool:
        """Whether the index has another version of a file than HEAD."""
        return [entry.split()[2].decode() for entry, _ in self._index(path)] != self._in_head(path)

    def belongs_to(self, path: Path) -> Path | None:
        """The submodule, or other repository inside this one, that a file is in; None if it is in this one."""
        folders = [one for one in path.parents if one != self.root and one.is_relative_to(self.root)]
        submodules = {self.root / name for entry, name in self._index(*folders) if entry.split()[1] == b"160000"}
        return next((one for one in folders if one in submodules or os.path.lexists(one / ".git")), None)

    def conversion(self, path: Path) -> str:
        """The attribute by which git stores other bytes than the file has, and its value; empty if there is none."""
        answer = self._ask("check-attr", "-z", *_CONVERSIONS, "--", self._relative(path)).decode(errors="replace")
        words = answer.split("\0")  # path, attribute, value, and so on
        pairs = zip(words[1::3], words[2::3], strict=True)
        return next((f"{name}={value}" for name, value in pairs if value not in ("unspecified", "unset")), "")

    def hidden_change(self, path: Path) -> str:
        """The mark that makes git pass over changes of a file: "skip-worktree", "assume-unchanged" or ""."""
        for facts, _ in self._index(path):
            tag = facts[:1]
            if tag in b"Ss":
                return "skip-worktree"
            if tag.islower():
                return "assume-unchanged"
        return ""

    def listed(self, folder: Path) -> dict[str, tuple[str, bool]]:
        """The index below a folder: each path there, with its id and whether a sparse checkout leaves it out."""
        paths = {}
        for facts, name in self._index(folder):
            tag, _, name_of_blob, _ = facts.split()
            paths[(self.root / name).relative_to(folder).as_posix()] = (name_of_blob.decode(), tag in b"Ss")
        return paths

    def blobs_with(self, text: str) -> Iterator[bytes]:
        """Every version of a file, on any branch, that brought or took away a text; the newest first."""
        commits = self._ask("rev-list", "--all")
        answer = self._ask("diff-tree", "--stdin", "--no-commit-id", "--root", "-r", "-m", "-S", text, given=commits)
        names: dict[str, None] = {}
        for line in answer.splitlines():
            _, _, before, after, _ = line.split(maxsplit=4)
            for name in (after, before):
                if name.strip(b"0"):
                    names[name.decode()] = None
        return map(self.blob, islice(names, _VERSIONS))

    def blob(self, name: str) -> bytes:
        """A version of a file, by its id."""
        if int(self._ask("cat-file", "-s", name)) > LARGEST:
            msg = f"git could not read {self.root}: {name} is larger than {LARGEST / 2**20:.0f} MiB"
            raise RefusalError(msg)
        return self._ask("cat-file", "blob", name)

    def _in_head(self, path: Path) -> list[str]:
        """The id of a plain file in HEAD, if HEAD has it."""
        found = _entries(self._ask("ls-tree", "-z", "--full-tree", "HEAD", "--", self._relative(path)))
        return [entry.split()[2].decode() for entry, _ in found if entry.startswith(b"100")]

    def _index(self, *paths: Path) -> list[tuple[bytes, str]]:
        """What the index has at and below some paths: flag, mode, id and stage, and the path in the tree."""
        names = [self._relative(path) for path in paths]
        return _entries(self._ask("ls-files", "-z", "-v", "--stage", "--", *names)) if names else []

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _ask(self, *arguments: str, allowed: Container[int] = (0,), given: bytes = b"") -> bytes:
        return _run(self.root, *arguments, allowed=allowed, given=given).stdout


def revision_of(tree: Path, files: Iterable[Path]) -> str:
    """The commit that a tree is at, with a word where some of its files differ from it."""
    checkout = Checkout.around(tree)
    if checkout is None or checkout.head is None:
        return "unknown"
    is_changed = any(checkout.committed(file) != with_lf(file.read_bytes()) for file in files)
    if is_changed:
        return f"{checkout.head[:12]} with uncommitted changes"  # the header's first line has 120 characters
    return checkout.head


def merge(theirs: bytes, base: bytes, ours: bytes) -> tuple[bytes, bool]:
    """Two changes of one base joined, and whether they conflict: then the result has git's markers."""
    labels = ("your edits", "as vendored", "the new version")
    with tempfile.TemporaryDirectory() as folder:
        for label, content in zip(labels, (theirs, base, ours), strict=True):
            (Path(folder) / label).write_bytes(content)
        conflicts = range(128)  # how many there are; more is an error
        merged = _run(Path(folder), "merge-file", "--stdout", *labels, allowed=conflicts)
    return merged.stdout, merged.returncode > 0


def _entries(answer: bytes) -> list[tuple[bytes, str]]:
    split = (entry.partition(b"\t") for entry in answer.split(b"\0") if entry)
    return [(facts, os.fsdecode(name)) for facts, _, name in split]


def _program(folder: Path) -> str:
    """The full path of git, from the user's PATH, but not from the folder that is looked at."""
    name = "git.exe" if sys.platform == "win32" else "git"
    for place in os.get_exec_path():
        program = Path(place, name)
        is_foreign = not program.is_absolute() or program.is_relative_to(folder)
        if not is_foreign and program.is_file() and os.access(program, os.X_OK):
            return str(program)
    raise RefusalError("this needs git, which is not installed; install it and run this again")


def _run(
    folder: Path, *arguments: str, allowed: Container[int] = (0,), given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    environment = dict(_SET)
    for name, value in os.environ.items():
        if not name.startswith("GIT_") or name in _USERS_OWN:
            environment[name] = value
    command = [_program(folder), *_FLAGS, *arguments]
    try:
        answer = subprocess.run(
            command, cwd=folder, env=environment, input=given, capture_output=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        msg = f"git did not answer within {_SECONDS} seconds, in {folder}"
        raise RefusalError(msg) from error
    except OSError as error:
        msg = f"git could not be started in {folder}: {error.strerror}"
        raise RefusalError(msg) from error
    if answer.returncode not in allowed:
        said = answer.stderr.decode(errors="replace").strip()
        msg = f"git could not read {folder}: {said or f'it ended with exit code {answer.returncode}'}"
        raise RefusalError(msg)
    return answer
