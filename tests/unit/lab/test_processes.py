"""A child process: its lines, its end, and that it does not outlive its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from thinwire_lab.processes import ChildProcess

DEADLINE_SECONDS = 60.0
ENDING = (
    "from thinwire_lab.processes import end_with_parent as e; e(); import signal; signal.pause()"
)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[ChildProcess]:
    made = ChildProcess("echo 1", "tests.unit.lab.echoing", folder=tmp_path, environment={})
    yield made
    made.kill()


def test_lines_go_there_and_back(child: ChildProcess) -> None:
    child.write_line("one")
    child.write_line("two")
    assert child.read_line(DEADLINE_SECONDS) == "one\n"
    assert child.read_line(DEADLINE_SECONDS) == "two\n"
    assert child.read_line(0.0) is None
    assert not child.has_lines
    assert child.exit_code is None


def test_an_exit_code_and_the_last_error_are_kept(child: ChildProcess, tmp_path: Path) -> None:
    child.write_line("end")
    child.wait()
    assert child.exit_code == 3
    assert child.last_error() == "last"
    assert (tmp_path / "echo-1.txt").read_text() == "first\nlast\n"


def test_a_killed_child_has_its_signal_as_exit_code(child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert child.exit_code == -signal.SIGKILL
    assert child.last_error() == ""


def test_a_child_ends_with_the_pipe_of_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDING], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=DEADLINE_SECONDS) == -signal.SIGTERM
