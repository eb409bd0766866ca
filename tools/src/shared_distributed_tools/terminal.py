# SPDX-License-Identifier: MIT
"""How tables and diffs are shown."""

import sys

import click
from rich.console import Console
from rich.table import Table

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def print_table(table: Table) -> None:
    """As wide as the terminal; piped output has no width of its own, and a log should not cut lines of code at 80."""
    Console(width=None if sys.stdout.isatty() else 240).print(table)


def print_diff(text: str) -> None:
    """A unified diff, in colours where there are any."""
    for line in text.splitlines():
        click.secho(line, fg=_COLOURS.get(line[:1]))
