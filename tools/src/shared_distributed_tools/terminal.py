# SPDX-License-Identifier: MIT
"""How tables, diffs and progress are shown."""

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
SECONDS_A_LINE = 10  # of progress, where there is no bar
REPO = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)  # an argument of many commands

Report = Callable[[float, float, str], None]  # done, of how much, what is being done


def printable(text: str) -> str:
    """Text that may hold names and code of a stranger's, with control characters escaped; lines and tabs stay."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def one_line(text: str) -> str:
    """The same for a name, and for a line that has one: a newline in it is escaped too."""
    return printable(text).replace("\n", "\\n")


def echo(text: str, *, err: bool = False, fg: str | None = None, bold: bool | None = None) -> None:
    """A line, or several; nothing in it has a meaning to the terminal."""
    click.secho(printable(text), err=err, fg=fg, bold=bold)


def say_left(lines: Iterable[str]) -> None:
    """What is left to a person, on standard error."""
    for line in lines:
        if line:
            echo(one_line(line), fg=None if line.startswith(" ") else "yellow", err=True)


def console() -> Console:
    """As wide as the terminal; piped output has no width of its own, and a log should not cut lines of code at 80.

    Names of files are data: square brackets in them mean nothing here.
    """
    return Console(width=None if sys.stdout.isatty() else 240, markup=False, emoji=False, highlight=False)


def print_table(table: Table) -> None:
    """A table, on standard output."""
    console().print(whole(table))


def whole(table: Table) -> Table:
    """With cells that go on in the next line where a terminal is narrow: cut off, a site would lose its line number.

    Names are data: what is not printable is escaped. They stand in the first column.
    """
    for number, column in enumerate(table.columns):
        column.overflow = "fold"
        column._cells = [_printable_cell(cell) if number else one_line(str(cell)) for cell in column._cells]
    return table


def _printable_cell(cell: RenderableType) -> RenderableType:
    return Text(printable(cell.plain), cell.style) if isinstance(cell, Text) else printable(str(cell))


def print_diff(text: str) -> None:
    """A unified diff, in colours where there are any."""
    lines = [click.style(printable(line), fg=_COLOURS.get(line[:1])) for line in text.split("\n")]
    click.echo("\n".join(lines) if text else "", nl=bool(text))


def as_html(table: Table) -> str:
    """A table as a page that stands alone, by rich's own export."""
    recorder = Console(record=True, width=160, file=io.StringIO(), markup=False, emoji=False, highlight=False)
    recorder.print(whole(table))
    return recorder.export_html()


@contextmanager
def progress(*after: ProgressColumn) -> Iterator[Report]:
    """How far a run is, on standard error: a bar that is gone in the end; in a log or a pipe, a line now and then."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield _lines()
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), *after, console=errors, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _lines() -> Report:
    last = time.monotonic()

    def report(done: float, total: float, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_A_LINE:
            last = now
            click.echo(f"{what}: {done / total:.0%}", err=True)

    return report
