"""The demonstration: one small GPT, trained dense and compressed by real processes on this machine.

A server and two workers for each way, one way after the other, on the same batches. Dense gradients
go through the same server and frames, so that like is compared with like. Prints nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from thinwire.errors import WorkerLost
from thinwire.lab.train.crew import SAVED
from thinwire.lab.train.events import Event, Outcome, Progress
from thinwire.lab.train.plan import Plan, prepare
from thinwire.lab.train.run import Run
from thinwire.lab.train.settings import RunSettings
from thinwire.lab.train.stopping import Interrupts
from thinwire.lab.train.summary import last

TASK, WORKERS = "demo", 2

LAST = 20
"""The final training loss is the mean of this many steps."""

LINKS = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10}
"""Links that step times are calculated for, in bits per second."""


@dataclass(frozen=True, slots=True)
class Way:
    """A recipe and the SGD that goes with it. ``momentum`` is the optimizer's, which DGC takes over
    for its feedback."""

    name: str
    recipe: str
    learning_rate: float
    momentum: float = 0.0


def ways() -> tuple[Way, ...]:
    """What the demo compares; dense comes first.

    Every learning rate is the best on held-out text of three that were tried for 250 steps, with
    simulated workers and another seed: 0.2, 0.3, 0.5 with momentum; 1, 2, 4 without. (For DGC 0.5
    was level with 0.3.)
    DoubleSqueeze goes without momentum, as in its paper: momentum multiplies the noise of one bit,
    and no rate that was tried with it came near.
    """
    return (
        Way("dense", "dense", learning_rate=0.3, momentum=0.9),
        Way("doublesqueeze 1 bit", "doublesqueeze(OneBit())", learning_rate=2.0),
        Way("dgc 1 %", "dgc(0.01)", learning_rate=0.3, momentum=0.9),
    )


@dataclass(frozen=True, slots=True)
class Result:
    """What a way reached. Bytes are those of one worker and step, frames and all; seconds are those
    of a step over loopback, where bytes cost next to nothing."""

    name: str
    steps: int
    learning_rate: float
    final_loss: float
    held_out_loss: float
    pushed_nbytes: float
    pulled_nbytes: float
    step_seconds: float
    losses: tuple[float, ...]

    @property
    def nbytes(self) -> float:
        return self.pushed_nbytes + self.pulled_nbytes

    def seconds_on(self, bits_per_second: float) -> float:
        """Calculated: a step as measured, and then the bytes of all workers through the link of the
        one server, first pushes and then answers."""
        return self.step_seconds + 8 * WORKERS * self.nbytes / bits_per_second


def plan_of(way: Way, out: Path, *, steps: int, seed: int) -> Plan:
    return prepare(
        RunSettings(
            TASK,
            str(out),
            recipe=way.recipe,
            workers=WORKERS,
            backend="server",
            seed=seed,
            steps=steps,
            learning_rate=way.learning_rate,
            momentum=way.momentum,
        )
    )


def train(
    way: Way, plan: Plan, show: Callable[[Event], None], interrupts: Interrupts
) -> Result | None:
    """A server and its workers, until they are done; None if they were stopped before. Their
    processes are gone in any case."""
    seen: list[Progress] = []

    def note(event: Event) -> None:
        if isinstance(event, Progress):
            seen.append(event)
        show(event)

    try:
        with Run(plan) as run:
            outcome = last(run.train(note, interrupts).events, Outcome)
    except WorkerLost as error:  # whose advice is for runs that are kept
        raise WorkerLost(f"{way.name}: {str(error).partition(SAVED)[0].strip()}") from error
    return None if outcome is None else make_result(way, seen, outcome)


def make_result(way: Way, seen: Sequence[Progress], outcome: Outcome) -> Result:
    """``seen`` are all steps of worker 0."""
    times = [0.0, *(step.seconds for step in seen)]
    return Result(
        name=way.name,
        steps=len(seen),
        learning_rate=way.learning_rate,
        final_loss=statistics.fmean(step.loss for step in seen[-LAST:]),
        held_out_loss=outcome.loss,
        pushed_nbytes=seen[-1].pushed_nbytes,
        pulled_nbytes=seen[-1].pulled_nbytes,
        # The median: other programs on this machine must not decide a comparison.
        step_seconds=statistics.median(b - a for a, b in pairwise(times)),
        losses=tuple(step.loss for step in seen),
    )
