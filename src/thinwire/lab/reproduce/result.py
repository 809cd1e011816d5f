"""What one trial reached, as plain JSON values and as figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thinwire.lab.reproduce.plan import Trial
from thinwire.lab.train.events import Epoch, Evaluation, Event, Outcome, as_values, read_values
from thinwire.lab.train.summary import last

Curve = tuple[tuple[float, float], ...]
"""Losses by epoch."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """``diverged`` is why there is no outcome; empty if there is one. ``settings`` are those of the
    run (``Plan.record``), ``dense_nbytes`` those of a gradient in 32 bits. ``command`` is the one
    that finished it, at ``date`` (ISO 8601, UTC); both are empty in files that are older than they
    are."""

    settings: dict[str, Any]
    machine: str
    dense_nbytes: int
    diverged: str
    events: tuple[Event, ...]
    command: str = ""
    date: str = ""

    @property
    def outcome(self) -> Outcome | None:
        return last(self.events, Outcome)

    @property
    def pushed(self) -> float:
        """Bytes of a push in the last epoch, when warm-up is over, with frames."""
        return _late(self.events, "pushed_nbytes")

    @property
    def pulled(self) -> float:
        return _late(self.events, "pulled_nbytes")

    def training_curve(self) -> Curve:
        """The mean loss of every epoch, at its end."""
        return tuple((e.epoch, e.loss) for e in self.events if isinstance(e, Epoch))

    def held_out_curve(self) -> Curve:
        return tuple((e.epoch, e.loss) for e in self.events if isinstance(e, Evaluation))

    def as_json(self, trial: Trial) -> dict[str, Any]:
        return {
            "trial": identity(trial),
            "settings": self.settings,
            "command": self.command,
            "date": self.date,
            "machine": self.machine,
            "dense_nbytes": self.dense_nbytes,
            "diverged": self.diverged,
            "events": [as_values(event) for event in self.events],
        }


def identity(trial: Trial) -> dict[str, Any]:
    """What a result belongs to: a file with another one is of another plan."""
    experiment = trial.experiment
    return {
        "experiment": experiment.name,
        "variant": trial.variant.name,
        "seed": trial.seed,
        "task": experiment.task,
        "scale": experiment.scale,
        "recipe": trial.variant.recipe,
        "workers": experiment.workers,
        "epochs": experiment.epochs,
        "learning_rate": experiment.learning_rate,
        "momentum": experiment.momentum,
    }


def result_from_json(values: dict[str, Any]) -> TrialResult:
    return TrialResult(
        settings=values["settings"],
        machine=values["machine"],
        dense_nbytes=values["dense_nbytes"],
        diverged=values["diverged"],
        events=tuple(read_values(event) for event in values["events"]),
        command=values.get("command", ""),
        date=values.get("date", ""),
    )


def _late(events: tuple[Event, ...], field: str) -> float:
    """Events have the mean since the beginning; the last two give the mean between them."""
    epochs = [event for event in events if isinstance(event, Epoch)]
    if not epochs:
        return 0.0
    end = epochs[-1]
    before = epochs[-2] if len(epochs) > 1 else None
    start, earlier = (0, 0.0) if before is None else (before.step, getattr(before, field))
    total = float(getattr(end, field)) * end.step - earlier * start
    return total / (end.step - start)
