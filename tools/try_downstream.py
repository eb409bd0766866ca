# SPDX-License-Identifier: MIT
"""The vendored file tried inside a real downstream project, with its own checks: `nox -s downstream -- REPO...`

In a temporary copy of each checkout the rendered file is swapped in, and the project's own check script runs, or its
tests, or an import where it has neither. The checkout is not touched. This runs downstream code: only when asked, with
this interpreter, on a copy.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from shared_distributed_tools.catalog import ADAPTERS
from shared_distributed_tools.render import render
from shared_distributed_tools.vendor.state import places

SCRIPTS = ("assert.py", "check.py")  # what these projects call theirs
SECONDS = 900


def try_in_copy(repo: Path) -> int:
    """Swap the file in, run what the project has, and return its exit code; 2 if no adapter fits."""
    fitting = [(name, path) for name, adapter in ADAPTERS.items() for path in places(repo, adapter)]
    if len(fitting) != 1:
        print(f"{repo}: one adapter has to fit its layout, found {fitting or 'none'}", flush=True)
        return 2
    name, path = fitting[0]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / repo.name
        shutil.copytree(repo, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "venv", ".nox"))
        (copy / path).unlink(missing_ok=True)  # a symlink's target stays as it is
        (copy / path).write_text(render(name), encoding="utf-8")
        command = what_to_run(copy, path)
        shown = shlex.join(["python", *command])
        print(f"{repo.name}: {name} at {path}; running {shown}", flush=True)
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run([sys.executable, *command], cwd=copy, env=environment, timeout=SECONDS, check=False)
    print(f"{repo.name}: {shown} ended with exit code {done.returncode}", flush=True)
    return done.returncode


def what_to_run(copy: Path, file: str) -> list[str]:
    """The arguments for Python."""
    for script in SCRIPTS:
        if (copy / script).is_file():
            return [script]
    if (copy / "tests").is_dir():
        return ["-m", "pytest", "-q", "tests"]
    module = file.removesuffix(".py").replace("/", ".")
    return ["-c", f'import {module} as m; print("imported", m.__name__)']


if __name__ == "__main__":
    codes = [try_in_copy(Path(repo).resolve()) for repo in sys.argv[1:]]
    sys.exit(int(any(codes) or not codes))
