"""``thinwire train`` with real processes ends where simulated workers do, also when stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.slow import slow
from thinwire.errors import ThinwireError, WorkerLost
from thinwire_lab.train.events import Event, Outcome, Progress
from thinwire_lab.train.interrupts import Interrupts
from thinwire_lab.train.plan import prepare
from thinwire_lab.train.run import Result, Run
from thinwire_lab.train.settings import RunSettings

SETTINGS = RunSettings(
    "gpt", "", scale="smoke", recipe="dgc(0.05)", workers=2, steps=300, save_steps=5
)
SHORT = replace(SETTINGS, steps=30)


def run(settings: RunSettings, act: Callable[[Interrupts], None] | None = None) -> Result:
    """Train; ``act`` once, when a few steps are done."""
    interrupts, acts = Interrupts(), [] if act is None else [act]

    def show(event: Event) -> None:
        if isinstance(event, Progress) and event.step >= 12 and acts:
            acts.pop()(interrupts)

    with Run(prepare(settings)) as opened:
        return opened.train(show, interrupts)


def stop(interrupts: Interrupts) -> None:
    interrupts.asked = True


def kill_worker(interrupts: Interrupts) -> None:
    (pid,) = children('"role": "worker", "rank": 1')
    os.kill(pid, signal.SIGKILL)


def children(words: str) -> Iterator[int]:
    """Processes that this one has started with ``words`` in their arguments."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
                if int(parent) == os.getpid() and words in (folder / "cmdline").read_text():
                    yield int(folder.name)
            except OSError:
                continue  # it has just ended


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What simulated workers reach."""
    result = run(replace(SHORT, out=str(tmp_path_factory.mktemp("virtual"))))
    outcome = result.events[-1]
    assert isinstance(outcome, Outcome)
    return outcome


@pytest.mark.parametrize("backend", ["ddp", slow("server")])
def test_stopped_and_resumed_it_ends_where_simulated_workers_do(
    backend: str, tmp_path: Path, expected: Outcome
) -> None:
    settings = replace(SHORT, backend=backend, out=str(tmp_path))
    assert not run(settings, stop).finished
    resumed = run(settings)
    assert resumed.finished
    assert resumed.events[-1] == expected
    assert not list(children("thinwire.lab.train"))


@pytest.mark.parametrize("backend", ["ddp", "server"])
def test_with_local_steps_it_ends_where_simulated_workers_do(backend: str, tmp_path: Path) -> None:
    alone = replace(SHORT, recipe="diloco(lr=0.8, momentum=0.5)", local_steps=4, delay=1)
    simulated = run(replace(alone, out=str(tmp_path / "virtual")))
    settings = replace(alone, backend=backend, out=str(tmp_path / backend))
    assert not run(settings, stop).finished
    resumed = run(settings)
    assert resumed.finished
    assert resumed.events[-1] == simulated.events[-1]


@pytest.mark.parametrize("backend", [slow("ddp"), "server"])
def test_a_killed_worker_is_named_and_what_was_saved_is_kept(backend: str, tmp_path: Path) -> None:
    settings = replace(SETTINGS, backend=backend, out=str(tmp_path))
    message = r"^worker 1 was killed by SIGKILL\. What was saved is in .*: the same command goes on"
    with pytest.raises(WorkerLost, match=message):
        run(settings, kill_worker)
    assert not list(children("thinwire.lab.train"))
    with Run(prepare(settings)) as opened:
        assert opened.start >= 10


def test_what_a_worker_says_when_it_fails_is_passed_on(tmp_path: Path) -> None:
    settings = replace(SETTINGS, backend="ddp", out=str(tmp_path), learning_rate=1e30)
    with pytest.raises(
        ThinwireError, match=r"^worker \d: the loss of step \d+ is .*: training div"
    ):
        run(replace(settings, recipe="dense"))
