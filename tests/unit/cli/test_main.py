"""The command line's manners: help, errors, and what it loads."""

from __future__ import annotations

from importlib.metadata import version

import click
import pytest
from click.testing import CliRunner

from thinwire.cli import main as cli
from thinwire.cli.main import main
from thinwire.cli.start import INTERRUPTED
from thinwire.errors import ConfigError

CommandLine = pytest.MonkeyPatch


def add_command(monkeypatch: CommandLine, name: str, error: BaseException) -> None:
    """A command of this name that raises."""

    def fail() -> None:
        raise error

    command = click.Command(name, callback=fail)
    monkeypatch.setattr(main, "get_command", lambda ctx, cmd_name: command)


def test_help_fits_a_screen_and_lists_the_commands() -> None:
    result = CliRunner().invoke(main, ["--help"], terminal_width=80)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert all(any(line.split()[:1] == [name] for line in lines) for name in ("demo", "bench"))


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"thinwire {version('thinwire')}\n")


def test_unknown_command_is_named() -> None:
    result = CliRunner().invoke(main, ["bnech"])
    assert result.exit_code == 2
    assert "No such command 'bnech'." in result.stderr


def test_our_error_is_one_line(monkeypatch: CommandLine) -> None:
    add_command(monkeypatch, "fail", ConfigError("bits must be 1 to 8,\n  got 9"))
    result = CliRunner().invoke(main, ["fail"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: bits must be 1 to 8, got 9\n"


def test_foreign_error_is_not_hidden(monkeypatch: CommandLine) -> None:
    add_command(monkeypatch, "fail", RuntimeError("a bug"))
    assert isinstance(CliRunner().invoke(main, ["fail"]).exception, RuntimeError)


def test_interrupt_is_quiet(monkeypatch: CommandLine) -> None:
    add_command(monkeypatch, "wait", KeyboardInterrupt())
    result = CliRunner().invoke(main, ["wait"])
    assert (result.exit_code, result.output) == (INTERRUPTED, "")


def test_every_command_is_where_the_table_says() -> None:
    for name, entry in cli.commands().items():
        assert entry.load().name == name
