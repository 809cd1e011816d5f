"""A command that is stopped, by whatever signal, saves, and reports it if its output is read."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.slow import slow
from tests.unit.cli.command import TERMINAL, Command
from thinwire.cli.start import INTERRUPTED

STOPPED = "Stopped. Everything is kept in"


def train(out: Path, backend: str) -> list[str]:
    steps = ["--workers", "2", "--steps", "100000"]
    return ["train", "gpt", "--scale", "smoke", *steps, "--backend", backend, "--out", str(out)]


@pytest.mark.parametrize("backend", ["virtual", slow("ddp"), slow("server")])
def test_sighup_saves_and_says_so(backend: str, tmp_path: Path) -> None:
    with Command(*train(tmp_path, backend)) as command:
        command.read_until("step 10, epoch 1:")
        command.process.send_signal(signal.SIGHUP)
        code, stdout, stderr = command.end()
    assert (code, stderr) == (INTERRUPTED, "")
    assert STOPPED in stdout


@pytest.mark.parametrize("backend", ["virtual", slow("server")])
def test_a_closed_terminal_saves_and_fails_at_nothing(backend: str, tmp_path: Path) -> None:
    terminal, inside = os.openpty()
    with Command(*train(tmp_path, backend), before=TERMINAL, stdout=inside) as command:
        os.close(inside)
        read = b""
        while b"step 10, epoch 1:" not in read:
            read += os.read(terminal, 4096)
        os.close(terminal)
        code, _, stderr = command.end()
    assert (code, stderr) == (INTERRUPTED, "")


def test_nohup_goes_on(tmp_path: Path) -> None:
    ignore = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    with Command(*train(tmp_path, "virtual"), before=ignore) as command:
        command.read_until("step 10, epoch 1:")
        command.process.send_signal(signal.SIGHUP)
        command.read_until("step 20, epoch 2:")
        command.read_until("step 30, epoch 3:")


def test_sighup_stops_reproduce(tmp_path: Path) -> None:
    with Command("reproduce", "clan", "--scale", "smoke", "--out", str(tmp_path)) as command:
        command.read_until("run 1 of")
        command.process.send_signal(signal.SIGHUP)
        code, stdout, stderr = command.end()
    assert (code, stderr) == (INTERRUPTED, "")
    assert "the same command goes on" in stdout


@pytest.mark.slow
def test_sighup_stops_the_demo(tmp_path: Path) -> None:
    report = str(tmp_path / "report.html")
    with Command("demo", "--steps", "50", "--report", report) as command:
        command.read_until("dense: step 10/50")
        command.process.send_signal(signal.SIGHUP)
        code, stdout, stderr = command.end()
    assert (code, stderr) == (INTERRUPTED, "")
    assert "Stopped. All processes are gone." in stdout


@pytest.mark.parametrize("backend", ["server", slow("virtual"), slow("ddp")])
def test_a_second_signal_does_not_prevent_saving(backend: str, tmp_path: Path) -> None:
    with Command(*train(tmp_path, backend)) as command:
        command.read_until("step 10, epoch 1:")
        command.process.send_signal(signal.SIGINT)
        command.process.send_signal(signal.SIGTERM)  # two of a kind may arrive as one
        code, stdout, stderr = command.end()
    assert (code, stderr) == (INTERRUPTED, "")
    assert STOPPED in stdout
