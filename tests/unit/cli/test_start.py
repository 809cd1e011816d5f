"""Ctrl-C while the command still loads: it ends at once, and without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.command import Command
from thinwire.cli.start import INTERRUPTED

INTERRUPTS = """
import os, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""
"""Ctrl-C at the moment when a module is looked for."""


@pytest.mark.parametrize(
    "module",
    [
        "torch",
        "numpy",
        "thinwire.cli.main",
        "click",
        "thinwire_lab.cli.train",
        "rich.progress",
        "thinwire_lab.train.run",
    ],
)
def test_ctrl_c_during_imports_is_quiet(module: str, tmp_path: Path) -> None:
    arguments = ("train", "gpt", "--scale", "smoke", "--out", str(tmp_path / "run"))
    with Command(*arguments, before=INTERRUPTS.format(name=module)) as command:
        assert command.end() == (INTERRUPTED, "", "")
    assert not (tmp_path / "run").exists()


def test_the_installed_command_begins_there() -> None:
    project = Path(__file__).parents[3] / "pyproject.toml"
    assert 'thinwire = "thinwire.cli.start:main"\n' in project.read_text()
