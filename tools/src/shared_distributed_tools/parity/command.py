# SPDX-License-Identifier: MIT
"""`adapters parity`."""

import json
from pathlib import Path

import click
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from ..catalog import ADAPTERS, adapter_named
from ..terminal import echo, progress

WORLD_SIZES = (1, 2, 3)


@click.command("parity")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--adapter", type=click.Choice(list(ADAPTERS)), required=True, help="The adapter to compare with.")
@click.option(
    "--world-size",
    type=click.IntRange(1, 16),
    multiple=True,
    default=WORLD_SIZES,
    show_default=True,
    help="How many ranks; may be repeated.",
)
@click.option("--json", "is_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def command(ctx: click.Context, file: Path, adapter: str, world_size: tuple[int, ...], is_json: bool) -> None:
    """Run the old FILE and an adapter side by side on real ranks, and compare them bit for bit.

    FILE is executed, in child processes. Needs no GPU and no network. Exit code: 0 if all
    is the same, better, or refused as the contract announces; 1 if something is different; 2 if FILE cannot be run.
    """
    from .compare import compare  # torch comes with these, and `--help` goes without
    from .report import show

    echo(f"parity runs {file}, in child processes", err=True)
    with progress(MofNCompleteColumn(), TimeElapsedColumn()) as report_progress:
        comparison = compare(file, adapter_named(adapter), world_size, progress=report_progress)
    exit_code = int(comparison.counts()["different"] > 0)
    if is_json:
        click.echo(json.dumps({**comparison.as_json(), "exit_code": exit_code}, indent=2))
    else:
        show(comparison)
    ctx.exit(exit_code)
