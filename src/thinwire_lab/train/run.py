"""``Run``: a training run on any backend, from its start or resumed from a checkpoint."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from thinwire_lab.train.checkpoint import CheckpointStore
from thinwire_lab.train.engines.virtual import VirtualEngine
from thinwire_lab.train.events import Emit, Epoch, Evaluation, Event, Outcome, as_values, last
from thinwire_lab.train.interrupts import Interrupts
from thinwire_lab.train.log import RunLog
from thinwire_lab.train.loop import Loop
from thinwire_lab.train.plan import Plan
from thinwire_lab.train.supervisor import train_processes


@dataclass(frozen=True, slots=True)
class Result:
    """``events`` are all that are logged, also before the run was resumed. ``finished`` is False if
    it was stopped early."""

    finished: bool
    events: tuple[Event, ...]


class Run(AbstractContextManager["Run"]):
    """The run in a folder. Opening it changes only the log, and refuses the log of another run."""

    def __init__(self, plan: Plan) -> None:
        virtual = plan.settings.backend == "virtual"
        self._plan, self._backend = plan, train_virtual if virtual else train_processes
        ranks = 1 if virtual else plan.settings.workers
        self.start = CheckpointStore(plan.out, rank=0, ranks=ranks).newest()
        """The step it resumes after; 0 for a new run."""
        self._log = RunLog(plan.out, plan.record(), step=self.start)

    @property
    def events(self) -> tuple[Event, ...]:
        """All that are logged so far."""
        return tuple(self._log.events)

    def train(self, show: Emit, interrupts: Interrupts) -> Result:
        """Train, and pass every event to ``show``. A finished run is not trained again."""
        if any(isinstance(event, Outcome) for event in self.events):
            return Result(True, self.events)

        def emit(event: Event) -> None:
            self._log.write(event)
            show(event)

        finished = self._backend(self._plan, emit, interrupts)
        return Result(finished, self.events)

    def __exit__(self, *exception: object) -> None:
        self._log.close()


def train_virtual(plan: Plan, emit: Emit, interrupts: Interrupts) -> bool:
    """Train in this process, with simulated workers."""
    torch.set_num_threads(plan.settings.threads)
    checkpoints = CheckpointStore(plan.out, rank=0, ranks=1)
    state = checkpoints.load()
    loop = Loop(plan, VirtualEngine(plan, state and state["engine"]), checkpoints, emit)
    if state is not None:
        loop.load(state)
    return loop.run(interrupts)


def summary(plan: Plan, result: Result) -> dict[str, Any]:
    """For ``--json``: settings, the last epoch, evaluation and test, and all events."""
    parts = {"epoch": Epoch, "evaluation": Evaluation, "test": Outcome}
    newest = {name: last(result.events, kind) for name, kind in parts.items()}
    return {
        "finished": result.finished,
        "settings": plan.record(),
        **{name: None if event is None else asdict(event) for name, event in newest.items()},
        "events": [as_values(event) for event in result.events],
    }
