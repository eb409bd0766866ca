# SPDX-License-Identifier: MIT
"""The console script `adapters`. Commands are imported when they are asked for: `--help` is quick.

A command is in the module of its name, or in `command` of the room of its name.
"""

import errno
import io
import sys
from importlib import import_module
from typing import Any

import click

from .errors import ToolError

COMMANDS = {
    "list": ("list", "The adapters, the file each replaces downstream, the version."),
    "render": ("render.command", "Print the file for an adapter."),
    "vendor": ("vendor.command", "Put an adapter's file into a repo, after showing the diff."),
    "check": ("vendor.check", "Say whether vendored files are current, stale or edited. Reads only."),
    "update": ("vendor.update", "Bring vendored files up to date, merging with a repo's edits."),
    "scan": ("scan.command", "Find copies of the originals in any tree, by structure. Reads only."),
    "plan": ("migrate.plan", "Say what moving a repo over would change, and what to look at. Reads only."),
    "parity": ("parity.command", "Run an old file and an adapter side by side, and compare (needs torch)."),
    "migrate": ("migrate.command", "Move a repo to a later stage: vendored, package or core."),
    "status": ("migrate.status", "Say at which stage every project is. Reads only."),
    "new": ("new", "Scaffold a further adapter, in a checkout of this project."),
}

EXIT_CODES = """\b
Exit codes:
   0  good
   1  findings: stale or edited files, copies found, something is different
   2  it could not be done: wrong usage, a refusal, an error, or a file that could hold a copy was not read"""


class LazyGroup(click.Group):
    """A group that knows its commands by name, and imports the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, without importing any."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"{__package__}.{COMMANDS[cmd_name][0]}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for --help, from the table above: click's own would import every command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error raised on purpose or by the system, or a missing package, is a message."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal may lack a character
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _CouldNotError("interrupted") from error
        except ToolError as error:
            raise _could_not(*error.args) from error
        except ModuleNotFoundError as error:
            needed = f"this needs {error.name}; in a checkout of shared-distributed: pip install './tools[torch]'"
            raise _could_not(needed) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click's own: whoever read the output has gone
            raise _could_not(str(error)) from error


class _CouldNotError(click.ClickException):
    exit_code = 2


def _could_not(*lines: str) -> _CouldNotError:
    """An error of these lines, which may name files and quote git."""
    from .terminal import one_line

    return _CouldNotError("\n".join(map(one_line, lines)))


@click.group(cls=LazyGroup, epilog=EXIT_CODES)
@click.version_option(package_name="shared-distributed-tools", prog_name="adapters")
def main() -> None:
    """Vendor an adapter of shared-distributed as one file, keep that file current, and move projects over."""
