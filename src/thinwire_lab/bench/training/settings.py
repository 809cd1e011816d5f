"""``TrainingBench``: which ways to train the same network, over which links, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import torch

from thinwire.checks import check_choice, check_positive, check_whole
from thinwire.errors import ConfigError
from thinwire.local.rounds import Rounds
from thinwire_lab.bench.links.cases import (
    CASES,
    DDP,
    NO_DELAY,
    NONE,
    UNLIMITED,
    LinkCase,
    delay_seconds_of,
    rate_of,
)
from thinwire_lab.data.text import VOCABULARY
from thinwire_lab.models.language import GPTSettings
from thinwire_lab.tasks.base import Task, Training
from thinwire_lab.tasks.optimizers import AdamWSettings, Cosine
from thinwire_lab.tasks.ours import CharacterFeed

HOSTS = 2
SEED = 0


@dataclass(frozen=True, slots=True)
class Link:
    """Between the hosts. ``delay`` is that of a round trip."""

    rate: str
    delay: str = NO_DELAY

    def __post_init__(self) -> None:
        rate_of(self.rate)
        delay_seconds_of(self.delay)

    @classmethod
    def read(cls, text: str) -> Link:
        """Read "100mbit-10ms", "1gbit" or "unlimited"."""
        rate, _, delay = text.partition("-")
        return cls(rate, delay or NO_DELAY)

    @property
    def name(self) -> str:
        return self.rate if self.delay == NO_DELAY else f"{self.rate}-{self.delay}"


FREE = Link(UNLIMITED)
LINKS = (FREE.name, "1gbit", "100mbit-10ms", "20mbit-50ms")

_OUTER = "lr=0.8, momentum=0.5"
_LATER = 4
"""Steps: a bit for each parameter of this network takes no longer at 20 Mbit/s."""


def _local(name: str, label: str, recipe: str, every: int) -> LinkCase:
    rounds = Rounds(every, _LATER)
    return LinkCase(name, f"{label}, every {every}", 0, recipe, "sharded", ddp=False, rounds=rounds)


WAYS = {
    way.name: way
    for way in (
        NONE,
        DDP,
        CASES["powersgd4"],
        LinkCase("adam", "compressed Adam", 0, "adam()", "sharded"),
        _local("average-8", "averaging in 1 bit", "local_average()", 8),
        _local("local-8", "outer momentum in 1 bit", f"diloco({_OUTER})", 8),
        _local("local-16", "outer momentum in 1 bit", f"diloco({_OUTER})", 16),
        _local("local-32", "outer momentum in 1 bit", f"diloco({_OUTER})", 32),
        _local("local-float32", "outer momentum in float32", f"diloco(Float32(), {_OUTER})", 32),
    )
}
UNEVEN = ("adam",)
"""Ways whose first steps are longer than later ones: they are always run in full."""

_SMOKE = Task(
    "training",
    "smoke",
    "one layer of 32",
    GPTSettings(VOCABULARY, context=16, layers=1, heads=2, width=32),
    CharacterFeed(4, 16, max_nbytes=200_000, epoch_steps=1, held_out_rows=64),
    Training(80, 3e-3, AdamWSettings(), Cosine(), rise_epochs=80 / 20),
)
_SMALL = Task(
    "training",
    "small",
    "6 layers of 384, 2 rows of 64 characters for each worker",
    GPTSettings(VOCABULARY, layers=6, heads=6, width=384),
    CharacterFeed(2, 64, epoch_steps=1, held_out_rows=128),
    Training(3200, 1e-3, AdamWSettings(), Cosine(), rise_epochs=3200 / 20),
)
TASKS = {task.scale: task for task in (_SMOKE, _SMALL)}
"""An epoch is a step, so that the number of steps is that of epochs."""


def task_of(scale: str, steps: int) -> Task:
    """The schedule of the rate is as long as the run."""
    task = TASKS[scale]
    return replace(task, training=task.training.lasting(steps))


def numel_of(scale: str) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in TASKS[scale].model.make().parameters())


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One way, trained over one link."""

    link: Link
    way: LinkCase
    scale: str
    steps: int

    @property
    def name(self) -> str:
        return f"{self.scale}-{self.link.name}-{self.way.name}-{self.steps}"


@dataclass(frozen=True, slots=True)
class TrainingBench:
    """What to run. A way that would take longer than ``longest_seconds`` on a link is timed there
    for some steps only. ``steps`` None are those of the task; ``ways`` and ``links`` are names."""

    scale: str = "small"
    steps: int | None = None
    ways: tuple[str, ...] = tuple(WAYS)
    links: tuple[str, ...] = LINKS
    longest_seconds: float = 1800.0

    def __post_init__(self) -> None:
        check_choice(self.scale, tuple(TASKS), owner="bench", field="scale")
        if self.steps is not None:
            check_whole(self.steps, least=1, owner="bench", field="steps")
        check_positive(self.longest_seconds, owner="bench", field="longest_seconds")
        for name in self.ways:
            check_choice(name, tuple(WAYS), owner="bench", field="only")
        for name in self.links:
            Link.read(name)
        if not self.runs():
            raise ConfigError(
                f"bench: nothing to run: a way and a link are needed, and {NONE.name!r} is timed "
                f"on the link {FREE.name!r} alone"
            )

    def runs(self) -> list[TrainingRun]:
        """What is asked for, in order. Without communication there is nothing to see of a link."""
        steps = round(TASKS[self.scale].training.epochs) if self.steps is None else self.steps
        links = [Link.read(name) for name in dict.fromkeys(self.links)]
        ways = [way for name, way in WAYS.items() if name in self.ways]
        return [
            TrainingRun(link, way, self.scale, steps)
            for link, way in product(links, ways)
            if way != NONE or link == FREE
        ]
