"""``TrialResult`` of one trial, and the ``Store`` of all that are finished."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError, ThinwireError
from thinwire.files import replacing
from thinwire_lab.reproduce.plan import Trial
from thinwire_lab.train.events import (
    Epoch,
    Evaluation,
    Event,
    Outcome,
    as_values,
    last,
    read_values,
)
from thinwire_lab.train.log import cannot_write

Curve = tuple[tuple[float, float], ...]
"""Losses by epoch."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """``diverged`` is why there is no outcome; empty if there is one. ``settings`` are those of the
    run (``Plan.record``), ``dense_nbytes`` those of a gradient in 32 bits. ``command`` is the one
    that finished it, at ``date`` (ISO 8601, UTC); both are empty in older
    files."""

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
        """Bytes of a push in the last epoch, after warm-up, as whole frames."""
        return _late(self.events, "pushed_nbytes")

    @property
    def pulled(self) -> float:
        return _late(self.events, "pulled_nbytes")

    @property
    def run_nbytes(self) -> float:
        """Bytes of one worker in the whole run, both ways, as whole frames."""
        end = last(self.events, Epoch)
        return 0.0 if end is None else end.step * (end.pushed_nbytes + end.pulled_nbytes)

    @property
    def run_ratio(self) -> float:
        """How many times fewer they are than in 32 bits."""
        end = last(self.events, Epoch)
        return 0.0 if end is None else end.ratio

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
    """The settings that a stored result must match."""
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
        **_rounds_of(trial),
    }


def _rounds_of(trial: Trial) -> dict[str, Any]:
    """Nothing without local steps, as in files from before there were any."""
    rounds = trial.variant.rounds
    if rounds is None:
        return {}
    return {"rounds": {k: value for k, value in asdict(rounds).items() if value is not None}}


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
    """Events hold the mean since the start; from the last two follows the mean between them."""
    epochs = [event for event in events if isinstance(event, Epoch)]
    if not epochs:
        return 0.0
    end = epochs[-1]
    before = epochs[-2] if len(epochs) > 1 else None
    start, earlier = (0, 0.0) if before is None else (before.step, getattr(before, field))
    total = float(getattr(end, field)) * end.step - earlier * start
    return total / (end.step - start)


class Store:
    """``OUT/results`` holds finished trials, ``OUT/runs`` those under way."""

    def __init__(self, out: Path) -> None:
        self._results, self._runs = out / "results", out / "runs"

    def run_folder(self, trial: Trial) -> Path:
        return self._runs / trial.folder

    def load(self, trial: Trial) -> TrialResult | None:
        """None if it is not finished. A result with other settings is refused."""
        path = self._path(trial)
        try:
            values = json.loads(path.read_text())
            stored, result = values["trial"], result_from_json(values)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ThinwireError(f"{path} cannot be read: delete it to run it again") from error
        wanted = identity(trial)
        other = next((name for name in wanted if stored.get(name) != wanted[name]), None)
        if other is not None:
            raise ConfigError(
                f"{path} is of another plan, with {other} {stored.get(other)}, not "
                f"{wanted[other]}: give a new folder, or delete it"
            )
        return result

    def save(self, trial: Trial, result: TrialResult) -> None:
        """Save it, and delete the trial's checkpoints."""
        path = self._path(trial)
        text = json.dumps(result.as_json(trial), indent=1, allow_nan=False) + "\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write_text(text)
        except OSError as error:
            raise cannot_write(path, error) from error
        shutil.rmtree(self.run_folder(trial), ignore_errors=True)

    def _path(self, trial: Trial) -> Path:
        return self._results / f"{trial.folder}.json"
