"""What a run reached, as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from thinwire.lab.train.events import Epoch, Evaluation, Event, Outcome, as_values
from thinwire.lab.train.plan import Plan
from thinwire.lab.train.run import Result

Kind = TypeVar("Kind", bound=Event)


def last(events: Sequence[Event], kind: type[Kind]) -> Kind | None:
    """The last event of a kind, if there is one."""
    return next((event for event in reversed(events) if isinstance(event, kind)), None)


def summary(plan: Plan, result: Result) -> dict[str, Any]:
    """Settings, whether it is finished, the last epoch, evaluation and test, and all events."""
    parts = {"epoch": Epoch, "evaluation": Evaluation, "test": Outcome}
    found = {name: last(result.events, kind) for name, kind in parts.items()}
    return {
        "finished": result.finished,
        "settings": plan.record(),
        **{name: None if event is None else asdict(event) for name, event in found.items()},
        "events": [as_values(event) for event in result.events],
    }
