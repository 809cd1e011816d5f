"""A run from its beginning, or from where it was stopped, on any backend."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType

import torch

from thinwire.lab.train.checkpoint import Keeper
from thinwire.lab.train.crew import train_processes
from thinwire.lab.train.events import Event, Outcome
from thinwire.lab.train.log import RunLog
from thinwire.lab.train.loop import Loop, Say
from thinwire.lab.train.plan import Plan
from thinwire.lab.train.stopping import Interrupts
from thinwire.lab.train.virtual import VirtualEngine


@dataclass(frozen=True, slots=True)
class Result:
    """All events that were kept, also those of earlier parts of the run. It may have been stopped
    before its end."""

    finished: bool
    events: tuple[Event, ...]


class Run(AbstractContextManager["Run"]):
    """The run in a folder. Opening it changes nothing but the log, and refuses another run's."""

    def __init__(self, plan: Plan) -> None:
        virtual = plan.settings.backend == "virtual"
        self._plan, self._backend = plan, train_virtual if virtual else train_processes
        ranks = 1 if virtual else plan.settings.workers
        self.start = Keeper(plan.out, rank=0, ranks=ranks).newest()
        """After which step it goes on; 0 if it begins."""
        self._log = RunLog(plan.out, plan.record(), step=self.start)

    @property
    def events(self) -> tuple[Event, ...]:
        """All that were kept so far."""
        return tuple(self._log.events)

    def train(self, show: Say, interrupts: Interrupts) -> Result:
        """Train, and tell everything to ``show``. What is finished already is only reported."""
        if any(isinstance(event, Outcome) for event in self.events):
            return Result(True, self.events)

        def say(event: Event) -> None:
            self._log.write(event)
            show(event)

        finished = self._backend(self._plan, say, interrupts)
        return Result(finished, self.events)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._log.close()


def train_virtual(plan: Plan, say: Say, interrupts: Interrupts) -> bool:
    """In this process, with simulated workers."""
    torch.set_num_threads(plan.settings.threads)
    keeper = Keeper(plan.out, rank=0, ranks=1)
    state = keeper.load()
    loop = Loop(plan, VirtualEngine(plan, state and state["engine"]), keeper, say)
    if state is not None:
        loop.load(state)
    return loop.run(interrupts)
