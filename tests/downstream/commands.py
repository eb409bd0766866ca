# SPDX-License-Identifier: MIT
"""The command `adapters`, as a test calls it."""

from pathlib import Path

from click.testing import CliRunner, Result

from shared_distributed_tools.cli import main

from .trees import commit


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
