# SPDX-License-Identifier: MIT
"""The command `adapters`, as a test calls it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from click.testing import CliRunner, Result

from shared_distributed_tools.cli import main

from .trees import commit

# as the console script does it, where no folder of the user's is on the path; within a minute and 1.5 GB
_APART = """
import sys
sys.path.pop(0)
import json, os, resource, signal
from click.testing import CliRunner
from shared_distributed_tools.cli import main
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**29, 3 * 2**29))
signal.alarm(60)
folders, commands, repos = map(json.loads, sys.argv[1:])
for folder, command, repo in ((f, c, r) for f in folders for c in commands for r in repos):
    os.chdir(folder)
    result = CliRunner().invoke(main, [*command.split(), repo])
    assert isinstance(result.exception, (SystemExit, type(None))), (command, result.exception)
    assert result.exit_code in (0, 1, 2) and result.output, (command, result.exit_code)
"""


def run_apart(
    commands: Sequence[str], repos: Sequence[Path], folders: Sequence[Path] = (Path("/"),), **options: object
) -> None:
    """Run commands in a process of their own, on each repo, in each folder; every one has to give an answer."""
    lists = [json.dumps([str(one) for one in some]) for some in (folders, commands, repos)]
    subprocess.run([sys.executable, "-c", _APART, *lists], check=True, **options)  # type: ignore[call-overload]


def run(*arguments: object, **environment: str) -> Result:
    """Run it in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=environment)


def done(*arguments: object) -> str:
    """Run it; it has to succeed. What it printed."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output + str(result.exception or "")
    return result.output


def refused(result: Result, because: str) -> bool:
    """Whether a command said no, and gave the reason."""
    assert because in result.output, result.output + str(result.exception or "")
    return result.exit_code == 2


def moved(repo: Path, *stages: str) -> Path:
    """A repo that went through some stages, a commit for each."""
    for stage in stages:
        done("migrate", repo, "--to", stage, "--write")
        commit(repo)
    return repo
