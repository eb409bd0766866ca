# SPDX-License-Identifier: MIT
"""`adapters render`."""

import click

from ..catalog import ADAPTERS
from . import render


@click.command("render")
@click.argument("name", type=click.Choice(list(ADAPTERS)))
def command(name: str) -> None:
    """Print the self-contained file for the adapter NAME: a pure function of the sources."""
    click.echo(render(name).encode(), nl=False)  # bytes: no newline translation on the way
