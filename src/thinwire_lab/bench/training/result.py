"""``TrainingResult``: what one run measured; ``ResultStore`` keeps each in a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thinwire.cli.files import write_json
from thinwire.errors import ConfigError, ThinwireError
from thinwire_lab.bench.training.settings import WAYS, Link, TrainingRun


@dataclass(frozen=True, slots=True)
class Point:
    """After ``step`` steps, which took ``seconds`` without the time to score."""

    step: int
    seconds: float
    loss: float


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """``points`` are empty if the run was cut off after its first steps, because all would have
    taken too long. ``step_seconds`` is the mean of the steps that were made, without the first
    ones; bytes are those of one host in a step, as its interface counts them. ``others`` is the
    share of the machine that other processes used, 0 to 1."""

    points: tuple[Point, ...]
    steps: int
    step_seconds: float
    sent_nbytes: float
    received_nbytes: float
    diverged: bool
    others: float
    machine: str
    command: str
    date: str

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrainingResult:
        points = tuple(Point(**point) for point in values.pop("points"))
        return cls(points=points, **values)


def identity(run: TrainingRun) -> dict[str, Any]:
    """The settings that a stored result must match."""
    way = run.way
    return {
        "link": run.link.name,
        "way": way.name,
        "recipe": way.recipe,
        "rounds": way.rounds and asdict(way.rounds),
        "scale": run.scale,
        "steps": run.steps,
    }


class ResultStore:
    """``OUT/results`` has a file for every finished run."""

    def __init__(self, out: Path) -> None:
        self._folder = out / "results"

    def has(self, run: TrainingRun) -> bool:
        """Whether it is finished. A result of other settings is refused."""
        path = self._path(run)
        if path.exists():
            self._load(path)
            return True
        return False

    def finished(self, scale: str) -> dict[TrainingRun, TrainingResult]:
        """All of a scale, also those of other commands, by way and number of steps."""
        loaded = [self._load(path) for path in sorted(self._folder.glob("*.json"))]
        order = list(WAYS)
        return dict(
            sorted(
                (pair for pair in loaded if pair[0].scale == scale),
                key=lambda pair: (order.index(pair[0].way.name), pair[0].steps),
            )
        )

    def save(self, run: TrainingRun, result: TrainingResult) -> None:
        write_json(self._path(run), {"run": identity(run), "result": asdict(result)})

    def _load(self, path: Path) -> tuple[TrainingRun, TrainingResult]:
        try:
            values = json.loads(path.read_text())
            stored, result = values["run"], TrainingResult.from_json(values["result"])
            link, way = Link.read(stored["link"]), WAYS[stored["way"]]
            run = TrainingRun(link, way, stored["scale"], stored["steps"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ThinwireError(f"{path} cannot be read: delete it to run it again") from error
        for field, wanted in identity(run).items():
            if stored.get(field) != wanted:
                raise ConfigError(
                    f"{path} is of another version, with {field} {stored.get(field)}, not "
                    f"{wanted}: give a new folder, or delete it"
                )
        return run, result

    def _path(self, run: TrainingRun) -> Path:
        return self._folder / f"{run.name}.json"
