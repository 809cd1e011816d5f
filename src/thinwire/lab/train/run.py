"""A run from its beginning, or from where it was stopped, on any backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thinwire.lab.train.checkpoint import Keeper
from thinwire.lab.train.events import Event, Outcome
from thinwire.lab.train.log import RunLog
from thinwire.lab.train.loop import Loop, Say
from thinwire.lab.train.plan import Plan
from thinwire.lab.train.stopping import Interrupts
from thinwire.lab.train.virtual import VirtualEngine

Backend = Callable[[Plan, Say, Interrupts], bool]


@dataclass(frozen=True, slots=True)
class Result:
    """All events that were kept, also those of earlier parts of the run. It may have been stopped
    before its end."""

    finished: bool
    events: tuple[Event, ...]


def resume_step(plan: Plan) -> int:
    """After which step the run will go on; 0 if it begins."""
    return Keeper(plan.out, rank=0, ranks=_ranks(plan)).newest()


def train(plan: Plan, show: Say, interrupts: Interrupts) -> Result:
    """Train, and tell everything to ``show``. A run that is finished already is only reported."""
    with RunLog(plan.out, plan.record(), step=resume_step(plan)) as log:
        if any(isinstance(event, Outcome) for event in log.events):
            return Result(True, tuple(log.events))

        def say(event: Event) -> None:
            log.write(event)
            show(event)

        finished = _backend(plan)(plan, say, interrupts)
        return Result(finished, tuple(log.events))


def _ranks(plan: Plan) -> int:
    """How many processes save a checkpoint."""
    return 1 if plan.settings.backend == "virtual" else plan.settings.workers


def _backend(plan: Plan) -> Backend:
    backends: dict[str, Backend] = {"virtual": _virtual}
    return backends[plan.settings.backend]


def _virtual(plan: Plan, say: Say, interrupts: Interrupts) -> bool:
    keeper = Keeper(plan.out, rank=0, ranks=1)
    state = keeper.load()
    loop = Loop(plan, VirtualEngine(plan, state and state["engine"]), keeper, say)
    if state is not None:
        loop.load(state)
    return loop.run(interrupts)
