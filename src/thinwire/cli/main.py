"""``main``: the ``thinwire`` command, a group that imports the subcommand it runs.

Other packages, such as ``thinwire_lab``, add commands by an entry point of the group
``thinwire.commands``: a mapping of names to ``LazyCommand``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

import click

from thinwire.cli.start import INTERRUPTED, ending_at_once
from thinwire.errors import ThinwireError

GROUP = "thinwire.commands"


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command that is imported when it is used: ``name`` in ``module``, and its line of help."""

    module: str
    name: str
    help: str
    needs_torch: bool = True
    """Import torch first, while Ctrl-C still ends the process at once."""

    def load(self) -> click.Command:
        with ending_at_once():
            if self.needs_torch:
                importlib.import_module("torch")
            command: click.Command = getattr(importlib.import_module(self.module), self.name)
        return command


OWN_COMMANDS = {
    "serve": LazyCommand("thinwire.cli.serve", "serve", "Run a parameter server."),
    "keys": LazyCommand(
        "thinwire.cli.keys", "keys", "Make and list keys of servers and workers.", needs_torch=False
    ),
    "inspect": LazyCommand(
        "thinwire.cli.inspect", "inspect", "Show the log of a server, or a file of frames."
    ),
    "replay": LazyCommand(
        "thinwire.cli.replay", "replay", "Rebuild the weights of any version from the logs."
    ),
}


@cache
def commands() -> Mapping[str, LazyCommand]:
    """All commands by name; those of other packages come first, because newcomers want the demo."""
    added = {}
    for point in entry_points(group=GROUP):
        added.update(point.load())
    return {**added, **OWN_COMMANDS}


class _LazyGroup(click.Group):
    """Imports only the command that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = commands().get(cmd_name)
        return None if entry is None else entry.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in commands().items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ThinwireError as error:
            raise click.ClickException(" ".join(str(error).split())) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None


@click.group(
    name="thinwire",
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="thinwire COMMAND --help explains a command.",
)
@click.version_option(package_name="thinwire", message="thinwire %(version)s")
def main() -> None:
    """Train over a thin wire: distributed PyTorch that sends 15 to 1000 times fewer bytes.

    \b
    New here?          thinwire demo
    Fast enough here?  thinwire bench kernels
    """
