"""``thinwire demo``: what it prints and leaves behind. Its processes are real, so steps are few."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from thinwire.cli.main import main
from thinwire.cli.start import INTERRUPTED
from thinwire_lab import demo as lab
from thinwire_lab.train.events import Emit, Event, Progress
from thinwire_lab.train.supervisor import Supervisor


def demo(folder: Path, *arguments: str) -> Result:
    report = str(folder / "report.html")
    return CliRunner().invoke(main, ["demo", "--report", report, "--steps", "3", *arguments])


def two_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = lab.ways()[:2]
    monkeypatch.setattr(lab, "ways", lambda: chosen)


@pytest.mark.timeout(300)
def test_it_trains_both_ways_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_ways(monkeypatch)
    outcome = demo(tmp_path, "--json", str(tmp_path / "demo.json"))
    assert outcome.exit_code == 0, outcome.output
    assert "a server and 2 workers, each a process, 3 steps, seed 0" in outcome.output
    assert "adam: 2 times fewer bytes" in outcome.output
    assert "100 Mbit/s" in outcome.output
    assert (tmp_path / "report.html").read_text().count("<svg") == 2
    found = json.loads((tmp_path / "demo.json").read_text())
    assert found["finished"]
    assert [len(result["losses"]) for result in found["results"]] == [3, 3]


@pytest.mark.timeout(300)
def test_ctrl_c_shows_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "pass_on", _interrupting(Supervisor.pass_on))
    outcome = demo(tmp_path, "--steps", "10000")
    assert outcome.exit_code == INTERRUPTED, outcome.output
    assert "Stopped. All processes are gone." in outcome.output
    assert "nothing to show" in outcome.output
    assert not (tmp_path / "report.html").exists()


def _interrupting(
    pass_on: Callable[[Supervisor, Emit], None],
) -> Callable[[Supervisor, Emit], None]:
    """Ctrl-C when the first step is reported."""

    def wrapped(supervisor: Supervisor, emit: Emit) -> None:
        def noticing(event: Event) -> None:
            emit(event)
            if isinstance(event, Progress) and event.step == 1:
                os.kill(os.getpid(), signal.SIGINT)

        pass_on(supervisor, noticing)

    return wrapped


@pytest.mark.timeout(300)
def test_a_killed_worker_is_named_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "start", _killing(Supervisor.start, "dense"))
    outcome = demo(tmp_path)
    assert outcome.exit_code == 1
    assert outcome.stderr == "Error: dense: worker 1 was killed by SIGKILL.\n"
    assert "nothing to show" in outcome.stdout
    assert "Ctrl-C" not in outcome.stdout


@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_later_costs_no_finished_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "start", _killing(Supervisor.start, "adam()"))
    outcome = demo(tmp_path, "--json", str(tmp_path / "demo.json"))
    assert outcome.exit_code == 1
    assert outcome.stderr == "Error: adam: worker 1 was killed by SIGKILL.\n"
    assert "After 3 steps:" in outcome.stdout
    assert "Ctrl-C" not in outcome.stdout
    assert (tmp_path / "report.html").read_text().count("<svg") == 2
    found = json.loads((tmp_path / "demo.json").read_text())
    assert not found["finished"]
    assert [result["name"] for result in found["results"]] == ["dense"]


def _killing(start: Callable[[Supervisor], None], recipe: str) -> Callable[[Supervisor], None]:
    """Kill a worker of this recipe when it was started."""

    def wrapped(supervisor: Supervisor) -> None:
        start(supervisor)
        if supervisor.plan.settings.recipe == recipe:
            supervisor.workers[1].kill()

    return wrapped


def test_it_refuses_a_file_that_it_cannot_write_before_it_trains(tmp_path: Path) -> None:
    outcome = demo(tmp_path, "--json", str(tmp_path / "missing" / "demo.json"))
    assert outcome.exit_code == 2
    assert "there is no folder" in outcome.output


@pytest.mark.parametrize("report", ["/proc/x.html", "/proc/none/x.html"])
def test_it_refuses_a_report_that_it_cannot_write_before_it_trains(
    report: str, tmp_path: Path
) -> None:
    outcome = demo(tmp_path, "--report", report)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert f"'--report': {report}: no file can be made in /proc: " in outcome.stderr
