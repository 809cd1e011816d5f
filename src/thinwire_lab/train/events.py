"""``Event``: what a run reports. All but ``Progress`` are kept in its log, a JSON line each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from thinwire.errors import ThinwireError


@dataclass(frozen=True, slots=True)
class Progress:
    """After ``step`` steps. Bytes are of one worker and step, the mean since the start; ``ratio``
    is how many times fewer than dense, both ways together. ``seconds`` counts steps alone."""

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
    """The test after the last step, on data that nothing was chosen by, if the set has some."""

    kind: ClassVar[str] = "test"
    step: int
    loss: float
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning that a worker logged, such as a lost gradient. ``step`` is the newest that rank 0
    has reported."""

    kind: ClassVar[str] = "warning"
    step: int
    worker: int
    text: str


Event: TypeAlias = Progress | Epoch | Evaluation | Outcome | Warned
Emit: TypeAlias = Callable[[Event], None]

_KINDS: dict[str, type[Event]] = {
    event.kind: event for event in (Progress, Epoch, Evaluation, Outcome, Warned)
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


Kind = TypeVar("Kind", bound=Event)


def last(events: Sequence[Event], kind: type[Kind]) -> Kind | None:
    """The last event of a kind, if there is one."""
    return next((event for event in reversed(events) if isinstance(event, kind)), None)
