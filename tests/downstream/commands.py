# SPDX-License-Identifier: MIT
"""The command `adapters`, as a test calls it."""

from pathlib import Path

from click.testing import CliRunner, Result

from shared_distributed_tools import sources
from shared_distributed_tools.cli import main

from .trees import commit

CHECKOUT = sources.root()


def run(*arguments: object, **environment: str) -> Result:
    """Run it in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=environment)


def refused(result: Result, because: str) -> bool:
    """Whether a command said no, and gave the reason."""
    assert because in result.output, result.output
    return result.exit_code == 1


def migrate(repo: Path, stage: str, *options: object) -> Result:
    """One stage, with whatever it needs."""
    source = ("--from", CHECKOUT) if stage == "package" else ()
    return run("migrate", repo, "--to", stage, *source, *options)


def moved(repo: Path, *stages: str) -> Path:
    """A repo that went through some stages, a commit for each."""
    for stage in stages:
        result = migrate(repo, stage, "--write")
        assert result.exit_code == 0, result.output
        commit(repo)
    return repo
