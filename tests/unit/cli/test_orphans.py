"""The processes of a command end when it does, however it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slow import slow
from tests.unit.cli.command import Command, Watched, children_of

END_SECONDS = 30.0


@pytest.mark.parametrize(("backend", "processes"), [("server", 3), slow("ddp", 2)])
def test_a_killed_run_leaves_no_process_and_the_same_command_goes_on(
    backend: str, processes: int, tmp_path: Path
) -> None:
    arguments = ["train", "gpt", "--scale", "smoke", "--workers", "2", "--steps", "100000"]
    arguments += ["--backend", backend, "--out", str(tmp_path)]
    with Command(*arguments) as command:
        # A step is told before it is saved, and others may be one behind: the first epoch is kept
        # by all when the third one ends.
        command.read_until("step 30, epoch 3:")
        check_that_children_end(command, processes)
    with Command(*arguments) as again:
        again.read_until("The run goes on after step")
        again.read_until("perplexity")


@pytest.mark.slow
def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    report = str(tmp_path / "report.html")
    with Command("demo", "--steps", "50", "--report", report) as command:
        command.read_until("dense: step 10/50")
        check_that_children_end(command, 3)


def check_that_children_end(command: Command, processes: int) -> None:
    """Nothing can be done about SIGKILL: what works for it works for every end."""
    pids = children_of(command.process.pid)
    assert len(pids) == processes
    with Watched(pids) as children:
        command.process.kill()
        assert children.end_within(END_SECONDS)
