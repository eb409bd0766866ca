# SPDX-License-Identifier: MIT
"""`adapters list`."""

import click
from rich.table import Table

from .catalog import ADAPTERS
from .render.sources import revision, version
from .terminal import print_table


@click.command("list")
def command() -> None:
    """The adapters, the file each replaces downstream, and the version of the sources."""
    table = Table("adapter", "downstream repo", "file")
    for adapter in ADAPTERS.values():
        flat = f"\nor distributed.py beside {adapter.flat_beside}" if adapter.flat_beside else ""
        table.add_row(adapter.name, adapter.downstream, adapter.target + flat)
    print_table(table)
    click.echo(f"version {version()}, revision {revision()}")
