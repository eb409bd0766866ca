# SPDX-License-Identifier: MIT
"""The three questions put to git: is this a repo, what does HEAD hold, how do two edits go together.

Only commands that run no hook, filter or monitor of the repo: nothing that lies there is executed.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from .errors import RefusalError


def is_under_git(folder: Path) -> bool:
    """Whether a folder belongs to a git work tree. Without git on this machine: no."""
    try:
        return _git(folder, "rev-parse", "--is-inside-work-tree").stdout.strip() == b"true"
    except FileNotFoundError:
        return False


def is_committed(path: Path, content: bytes) -> bool:
    """Whether HEAD has a file with this content, whatever its newlines."""
    kept = _git(path.parent, "cat-file", "blob", f"HEAD:./{path.name}")
    return kept.returncode == 0 and kept.stdout.replace(b"\r\n", b"\n") == content.replace(b"\r\n", b"\n")


def merge(theirs: bytes, base: bytes, ours: bytes) -> tuple[bytes, bool]:
    """Two changes of one base joined, and whether they conflict: then the result has git's markers."""
    labels = ("your edits", "as vendored", "the new version")
    with tempfile.TemporaryDirectory() as folder:
        arguments = []
        for label, content in zip(labels, (theirs, base, ours), strict=True):
            (Path(folder) / label).write_bytes(content)
            arguments += ["-L", label]
        try:
            style = ("-c", "merge.conflictStyle=merge")
            merged = _git(Path(folder), *style, "merge-file", "--stdout", *arguments, *labels)
        except FileNotFoundError as error:
            raise RefusalError("merging needs git; install it, or run `adapters diff` and merge by hand") from error
    if not 0 <= merged.returncode < 128:  # the number of conflicts, or an error
        msg = f"git could not merge: {merged.stderr.decode(errors='replace').strip()}; nothing was changed"
        raise RefusalError(msg)
    return merged.stdout, merged.returncode > 0


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # inside a git hook such variables point at another repo or index
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, check=False)
