"""The ``thinwire`` command: knows its subcommands by name, and loads the one that is asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import click

from thinwire.errors import ThinwireError

INTERRUPTED = 130
"""The exit code that shells give to Ctrl-C: 128 + SIGINT."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A command that is not loaded yet: ``name`` in ``module``, and its line of help."""

    module: str
    name: str
    help: str

    def load(self) -> click.Command:
        command: click.Command = getattr(importlib.import_module(self.module), self.name)
        return command


_COMMANDS = {
    "demo": _Entry(
        "thinwire.cli.demo", "demo", "See it work: a small GPT, trained on this machine."
    ),
    "train": _Entry("thinwire.cli.train", "train", "Train a task on real data, and resume it."),
    "reproduce": _Entry(
        "thinwire.cli.reproduce", "reproduce", "Run the papers' comparisons again."
    ),
    "serve": _Entry("thinwire.cli.serve", "serve", "Run a parameter server."),
    "keys": _Entry("thinwire.cli.keys", "keys", "Make keys for servers and workers."),
    "inspect": _Entry(
        "thinwire.cli.inspect", "inspect", "Show what is in a server's log, or in a file of frames."
    ),
    "replay": _Entry(
        "thinwire.cli.replay", "replay", "Rebuild the weights of any version from the logs."
    ),
    "bench": _Entry(
        "thinwire.cli.bench", "bench", "Measure kernels, links and servers beside the alternatives."
    ),
}


class _LazyGroup(click.Group):
    """Every command has needs of its own: only the one that runs is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        return None if entry is None else entry.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in _COMMANDS.items()])

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
    epilog="thinwire COMMAND --help explains a command. A failure is one sentence.",
)
@click.version_option(package_name="thinwire", message="thinwire %(version)s")
def main() -> None:
    """Train over a thin wire: distributed PyTorch that sends 30 to 1000 times fewer bytes.

    \b
    New here?          thinwire demo
    Fast enough here?  thinwire bench kernels
    """
