# SPDX-License-Identifier: MIT
"""A rendered file tried inside a real downstream project: `python -m shared_distributed_tools.downstream REPO…`.

In a temporary copy of each checkout the vendored file is swapped in, and the project's own check script
runs, or its tests, or an import where it has neither. The checkout itself is not touched. Unlike everything
else here this runs downstream code: only when asked, with this interpreter, on a copy.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from .errors import RefusalError, ToolError
from .paths import adapters_that_fit, repo_root
from .vendoring import vendor

_SCRIPTS = ("assert.py", "check.py")  # what these projects call theirs
_SECONDS = 900


def try_in_copy(repo: Path) -> int:
    """Swap the file in, run what the project has, and return its exit code."""
    fitting = adapters_that_fit(repo)
    if len(fitting) != 1:
        names = ", ".join(adapter.name for adapter in fitting) or "none"
        msg = f"{repo}: one adapter has to fit its layout, found {names}"
        raise RefusalError(msg)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / repo.name
        # without .git the copy is nobody's work, and may be overwritten
        shutil.copytree(repo, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "venv", ".nox"))
        change = vendor(copy, fitting[0], None, force=True)
        change.apply()
        command = _what_to_run(copy, change.seen.relative)
        said = shlex.join(["python", *command])
        click.echo(f"{repo.name}: {fitting[0].name} at {change.seen.relative}; running {said}")
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run([sys.executable, *command], cwd=copy, env=environment, timeout=_SECONDS, check=False)
    click.echo(f"{repo.name}: {said} ended with exit code {done.returncode}")
    return done.returncode


def _what_to_run(copy: Path, file: str) -> list[str]:
    for script in _SCRIPTS:
        if (copy / script).is_file():
            return [script]
    if (copy / "tests").is_dir():
        return ["-m", "pytest", "-q", "tests"]
    module = file.removesuffix(".py").replace("/", ".")
    return ["-c", f'import {module} as m; print("imported", m.__name__, "with", *m.__all__)']


@click.command()
@click.argument("repos", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REPO...")
def main(repos: tuple[Path, ...]) -> None:
    """Try the rendered file in a copy of each REPO, with the project's own checks. Exit code 1 if any fails."""
    try:
        codes = [try_in_copy(repo_root(repo)) for repo in repos]
    except ToolError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(int(any(codes)))


if __name__ == "__main__":
    main()
