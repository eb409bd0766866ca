# SPDX-License-Identifier: MIT
"""`adapters demo`."""

import click


@click.command("demo")
def command() -> None:
    """Gather ragged batches on four gloo ranks through the core and every adapter."""
    from .demo import show  # torch comes with it, and `--help` goes without

    if not show():
        raise click.ClickException("a rank differs from one process")
