# SPDX-License-Identifier: MIT
"""How tables, diffs and progress are shown."""

import sys

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def console() -> Console:
    """As wide as the terminal; piped output has no width of its own, and a log should not cut lines of code at 80."""
    return Console(width=None if sys.stdout.isatty() else 240)


def print_table(table: Table) -> None:
    """A table, on standard output."""
    console().print(whole(table))


def whole(table: Table) -> Table:
    """With cells that go on in the next line where a terminal is narrow: cut off, a site would lose its line number."""
    for column in table.columns:
        column.overflow = "fold"
    return table


def print_diff(text: str) -> None:
    """A unified diff, in colours where there are any."""
    for line in text.splitlines():
        click.secho(line, fg=_COLOURS.get(line[:1]))


def progress(*after: ProgressColumn) -> Progress:
    """A bar that is gone in the end, on standard error and only where that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *after)
    errors = Console(stderr=True)
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
