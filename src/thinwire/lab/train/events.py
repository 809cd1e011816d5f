"""What a run says while it goes on. All but ``Progress`` is kept in its log, a JSON line each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

from thinwire.errors import ThinwireError


@dataclass(frozen=True, slots=True)
class Progress:
    """After ``step`` steps. Bytes are of one worker and step, in the mean since the beginning;
    ``ratio`` is how many times fewer than dense, both ways together. Seconds are of steps alone."""

    kind: ClassVar[str] = "progress"
    step: int
    loss: float
    learning_rate: float
    pushed_nbytes: float
    pulled_nbytes: float
    ratio: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Epoch:
    """The end of an epoch, or of the run within one; ``loss`` is its mean in training."""

    kind: ClassVar[str] = "epoch"
    step: int
    epoch: float
    loss: float
    learning_rate: float
    pushed_nbytes: float
    pulled_nbytes: float
    ratio: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """On data that is not trained on."""

    kind: ClassVar[str] = "evaluation"
    step: int
    epoch: float
    loss: float
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """After the last step, on data that decided nothing before, if the set has some."""

    kind: ClassVar[str] = "test"
    step: int
    loss: float
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that a worker could not do as it should: gradient that was lost, for one. ``step``
    is the newest that rank 0 has told of."""

    kind: ClassVar[str] = "warning"
    step: int
    worker: int
    text: str


Event: TypeAlias = Progress | Epoch | Evaluation | Outcome | Warned

_KINDS: dict[str, type[Event]] = {
    one.kind: one for one in (Progress, Epoch, Evaluation, Outcome, Warned)
}


def write_event(event: Event) -> str:
    """One line, without its end."""
    return json.dumps(as_values(event), allow_nan=False)


def read_event(line: str) -> Event:
    try:
        return read_values(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ThinwireError(f"not a line of a run's log: {line.strip()[:80]!r}") from error


def read_values(values: dict[str, Any]) -> Event:
    """From what ``as_values`` made."""
    return _KINDS[values["kind"]](**{name: x for name, x in values.items() if name != "kind"})


def as_values(event: Event) -> dict[str, Any]:
    return {"kind": event.kind, **asdict(event)}
