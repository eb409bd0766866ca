# SPDX-License-Identifier: MIT
"""The console script `adapters`. Commands are imported when they are asked for: `--help` needs no LibCST.

Those that need torch import it when they run: their own help is for those who have not installed it yet, too.
"""

from importlib import import_module
from typing import Any

import click

from .errors import ToolError

_COMMANDS = {
    "list": ("commands:list_adapters", "The adapters, the file each replaces downstream, versions."),
    "render": ("commands:render", "Print the file for an adapter."),
    "vendor": ("commands:vendor", "Put an adapter's file into a repo, after showing the diff."),
    "check": ("commands:check", "Say whether vendored files are current, stale or edited. Reads only."),
    "diff": ("commands:diff", "Show two diffs: a repo's edits, and our changes since."),
    "update": ("commands:update", "Bring vendored files up to date, merging with a repo's edits."),
    "scan": ("scan.command:command", "Find copies of the originals in any tree, by structure. Reads only."),
    "parity": ("parity.command:command", "Run an old file and an adapter side by side, and compare (needs torch)."),
    "plan": ("migration.commands:plan", "Say what moving a repo over would change, and what to look at. Reads only."),
    "migrate": ("migration.commands:migrate", "Move a repo one stage on: vendored, package, core."),
    "rollback": ("migration.commands:rollback", "Take a repo back one stage, byte for byte."),
    "status": ("migration.commands:status", "Say where every project stands, as a table or a page. Reads only."),
    "new": ("scaffold:command", "Scaffold a further adapter, in a checkout of this project."),
    "bench": ("bench.cli:command", "Measure the gathers of the core, the originals and others (needs torch)."),
    "demo": ("demo_command:command", "Run a small gather on a few processes (needs torch)."),
}

EXIT_CODES = """\b
Exit codes:
   0  done; check: every file is current, or a shim; scan: no copy
   1  refused, or an error; the message says what to do
   2  wrong usage
  10  check: stale             11  check: locally edited
  12  check: stale and edited  13  check: untracked
  14  check: tampered          15  check, update: conflict
  16  check: missing
  20  scan: copies found       21  scan: none found, but not everything could be read
  30  parity: something is different
  40  status: worth a look     41  status: something is wrong
With several files or projects check and status exit with the highest."""


class LazyGroup(click.Group):
    """A group that knows its commands by name, and imports the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, without importing any."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"{__package__}.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for --help, from the table above: click's own would import every command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error that was raised on purpose, or a missing package, is a message, not a traceback."""
        try:
            return super().invoke(ctx)
        except ToolError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            msg = (
                f"this needs {error.name}: pip install 'shared-distributed-tools[torch]', or in a checkout\n"
                "  pip install ./shared/distributed ./packages/* './tools[torch]'"
            )
            raise click.ClickException(msg) from error


@click.group(cls=LazyGroup, epilog=EXIT_CODES)
@click.version_option(package_name="shared-distributed-tools", prog_name="adapters")
def main() -> None:
    """Vendor an adapter of shared-distributed as one file, and keep that file current."""
