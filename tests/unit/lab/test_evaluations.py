"""Evaluations between ends of epochs: they are seen, and training goes on as if they were not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.lab.runs import gpt, lstm, run, state, without_seconds
from thinwire.errors import ConfigError
from thinwire_lab.tasks.ours import OPTIMIZERS
from thinwire_lab.tasks.registry import all_tasks, find_task
from thinwire_lab.train.events import Epoch, Evaluation, Event, Outcome
from thinwire_lab.train.plan import Plan
from thinwire_lab.train.run import Result

TASKS = {"gpt": gpt, "lstm": lstm}
"""An LSTM has a state between steps, dropout, and a rate that looks at the losses of epochs."""


def often(plan: Plan, count: int = 4) -> Plan:
    training = replace(plan.task.training, evaluations_per_epoch=count)
    return replace(plan, task=replace(plan.task, training=training))


def steps_of(result: Result, kind: type[Event]) -> list[int]:
    return [event.step for event in result.events if isinstance(event, kind)]


def test_they_come_between_ends_of_epochs(tmp_path: Path) -> None:
    result = run(often(gpt(tmp_path)))
    assert steps_of(result, Evaluation) == [3, 5, 8, 10, 13, 15, 18, 20, 23, 24]
    assert steps_of(result, Epoch) == [10, 20, 24]
    epochs = [event.epoch for event in result.events if isinstance(event, Evaluation)]
    assert epochs[:4] == [0.3, 0.5, 0.8, 1.0]


def test_more_than_steps_are_one_for_each(tmp_path: Path) -> None:
    assert steps_of(run(often(gpt(tmp_path), 100)), Evaluation) == list(range(1, 25))


@pytest.mark.parametrize("task", TASKS)
def test_training_is_the_same_bit_for_bit(task: str, tmp_path: Path) -> None:
    make: Callable[[Path], Plan] = TASKS[task]
    plain, looked_at = make(tmp_path / "plain"), often(make(tmp_path / "looked_at"), 7)
    expected, found = run(plain), run(looked_at)
    assert len(found.events) > len(expected.events) + 5
    assert state(looked_at) == state(plain)
    for kind in (Epoch, Outcome):
        assert _of_kind(found, kind) == _of_kind(expected, kind)
    assert [e for e in found.events if e in _evaluations(expected)] == _evaluations(expected)


def _of_kind(result: Result, kind: type[Event]) -> list[dict[str, object]]:
    events = tuple(event for event in result.events if isinstance(event, kind))
    return without_seconds(replace(result, events=events))


def _evaluations(result: Result) -> list[Event]:
    return [event for event in result.events if isinstance(event, Evaluation)]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("stop_at", [3, 4, 13])
def test_a_run_resumed_between_them_has_the_same_events(
    task: str, stop_at: int, tmp_path: Path
) -> None:
    make: Callable[[Path], Plan] = TASKS[task]
    whole, parts = (often(make(tmp_path / name)) for name in ("whole", "parts"))
    expected = run(whole)
    assert not run(parts, stop_at=stop_at).finished
    assert without_seconds(run(parts)) == without_seconds(expected)
    assert state(parts) == state(whole)


@pytest.mark.parametrize("name", ["bert", "lstm-small"])
def test_small_runs_on_words_have_enough_for_a_curve(name: str) -> None:
    training = find_task(name, "small").training
    assert 8 <= training.epochs * training.evaluations_per_epoch <= 12


def test_other_tasks_have_one_at_the_end_of_every_epoch() -> None:
    found = {(t.name, t.scale) for t in all_tasks() if t.training.evaluations_per_epoch > 1}
    battery = {(f"{n}-{o}", "small") for n in ("penn", "masked") for o in OPTIMIZERS}
    assert found == {("bert", "small"), ("lstm-small", "small")} | battery


def test_none_in_an_epoch_is_refused() -> None:
    with pytest.raises(ConfigError, match="evaluations_per_epoch must be a whole number from 1"):
        replace(find_task("gpt", "smoke").training, evaluations_per_epoch=0)
