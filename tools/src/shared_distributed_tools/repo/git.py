# SPDX-License-Identifier: MIT
"""What git is asked. No other module starts a program, and nothing that lies in a repository runs.

git gets a directory, an environment and flags that leave the repository no say: no hook, filter, monitor, pager,
signature program or network. The user's own configuration counts, `safe.directory` above all. Only commands that
read are used, and what git cannot answer is a RefusalError, never "not there".
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..errors import RefusalError
from .files import LARGEST, with_lf

_SETTINGS = (
    "safe.bareRepository=explicit",
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "merge.conflictStyle=merge",
)
_FLAGS = ("--no-pager", "--literal-pathspecs", *(word for one in _SETTINGS for word in ("-c", one)))
_USERS_OWN = frozenset({"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"})
_SET = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
_SECONDS = 300  # for one answer
_VERSIONS = 1000  # of a file, that are looked at
# a file or folder in the git directory -> what is under way while it is there
_UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
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
        # by discovery: this way git itself checks who owns the repository
        answer = os.fsdecode(_run(root, "rev-parse", "--absolute-git-dir", "--show-toplevel").stdout)
        git_dir, is_here, _ = answer.rpartition(f"\n{root.as_posix()}\n")
        if not is_here:
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

    def listed(self, folder: Path) -> dict[str, tuple[str, bool]]:
        """The index below a folder: each path there, with its id and whether a sparse checkout leaves it out."""
        found = ((entry.split(), self.root / name) for entry, name in self._index(folder))
        return {path.relative_to(folder).as_posix(): (entry[2].decode(), entry[0] == b"S") for entry, path in found}

    def blobs_with(self, text: str) -> Iterator[bytes]:
        """Every version of a file, on any branch, that brought or took away a text; the newest first."""
        log = ("log", "--all", "--raw", "--no-abbrev", "--no-renames", "--no-textconv", "--no-ext-diff")
        lines = self._ask(*log, "--no-show-signature", "--format=", "-S", text).splitlines()
        # the version after, and the one before
        ids = dict.fromkeys(name.decode() for line in lines for name in line.split()[3:1:-1] if name.strip(b"0"))
        return map(self.blob, islice(ids, _VERSIONS))

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
        return _entries(self._ask("ls-files", "-z", "-t", "--stage", "--", *names)) if names else []

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _ask(self, *arguments: str, allowed: Container[int] = (0,)) -> bytes:
        where = (f"--git-dir={self.git_dir}", f"--work-tree={self.root}")
        return _run(self.root, *where, *arguments, allowed=allowed).stdout


def revision_of(tree: Path, files: Iterable[Path]) -> str:
    """The commit that a tree is at, with a word where some of its files differ from it."""
    checkout = Checkout.around(tree)
    if checkout is None or checkout.head is None:
        return "unknown"
    is_changed = any(checkout.committed(file) != with_lf(file.read_bytes()) for file in files)
    return checkout.head + (" with uncommitted changes" if is_changed else "")


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


def _run(folder: Path, *arguments: str, allowed: Container[int] = (0,)) -> subprocess.CompletedProcess[bytes]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _USERS_OWN}
    places = os.pathsep.join(place for place in os.get_exec_path() if Path(place).is_absolute())  # never the repository
    environment = {**own, **_SET, "PATH": places, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    command = [shutil.which("git", path=places) or "", *_FLAGS, *arguments]
    try:
        answer = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        msg = f"git did not answer within {_SECONDS} seconds, in {folder}"
        raise RefusalError(msg) from error
    except OSError as error:
        raise RefusalError("this needs git, which is not installed; install it and run this again") from error
    if answer.returncode not in allowed:
        said = answer.stderr.decode(errors="replace").strip()
        msg = f"git could not read {folder}: {said or f'it ended with exit code {answer.returncode}'}"
        raise RefusalError(msg)
    return answer
