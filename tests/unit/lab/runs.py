"""Small training runs for tests: ``gpt`` and ``lstm`` plans, ``run`` with Ctrl-C, ``state``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from thinwire_lab.data.penn import Words
from thinwire_lab.models.language import LSTMSettings
from thinwire_lab.tasks.language import StreamWork
from thinwire_lab.tasks.registry import find_task
from thinwire_lab.train.checkpoint import CheckpointStore
from thinwire_lab.train.events import Event, Progress
from thinwire_lab.train.interrupts import Interrupts
from thinwire_lab.train.plan import Plan, prepare
from thinwire_lab.train.recipe import complete_recipe
from thinwire_lab.train.run import Result, Run
from thinwire_lab.train.settings import RunSettings

TEXT = torch.arange(30).repeat(40)
SETTINGS = RunSettings("gpt", "", scale="smoke", recipe="dgc(0.05)", workers=2, steps=24)


def gpt(out: Path, **changes: object) -> Plan:
    return prepare(replace(SETTINGS, out=str(out), **changes))  # type: ignore[arg-type]


def silent(event: Event) -> None:
    pass


def run(
    plan: Plan, *, stop_at: int | None = None, show: Callable[[Event], None] = silent
) -> Result:
    """Train; Ctrl-C comes during the step after ``stop_at``."""
    interrupts = Interrupts()

    def look(event: Event) -> None:
        show(event)
        if isinstance(event, Progress) and event.step == stop_at:
            interrupts.asked = True

    with Run(plan) as opened:
        return opened.train(look, interrupts)


def state(plan: Plan) -> bytes:
    """The newest checkpoint, but for the time it took."""
    saved = CheckpointStore(plan.out, rank=0, ranks=1).load()
    assert saved is not None
    saved["tally"]["seconds"] = 0.0
    path = plan.out / "compared"
    torch.save(saved, path)
    return path.read_bytes()


def without_seconds(result: Result) -> list[dict[str, object]]:
    return [{**asdict(event), "seconds": 0} for event in result.events]


def words() -> Words:
    return Words(tuple(map(str, range(30))), TEXT, TEXT[:200], TEXT[:300])


def lstm(out: Path, *, recipe: str = "dgc(0.05)") -> Plan:
    """The LSTM's task with a text that needs no file."""
    settings = replace(SETTINGS, task="lstm-large", out=str(out), steps=30)
    task = find_task("lstm-large", "smoke")
    work = StreamWork(words(), 3, 20, workers=2, seed=0)
    task = replace(task, model=LSTMSettings(words=30, width=8, dropout=0.5))
    training = task.training.lasting(30 / work.epoch_steps)
    spelled = complete_recipe(recipe, training, work.epoch_steps)
    return Plan(settings, replace(task, training=training), work, spelled, 30)
