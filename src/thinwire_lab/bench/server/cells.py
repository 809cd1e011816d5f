"""``ServerBench``: what the server benchmark compares, as cells, and the link it runs over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from thinwire.checks import check_choice, check_positive, check_whole
from thinwire.errors import ConfigError
from thinwire.recipe_text import read_recipe
from thinwire_lab.bench.hosts import Host, hosts
from thinwire_lab.bench.rounds import Limits
from thinwire_lab.bench.server.synthetic import SyntheticModel
from thinwire_lab.bench.workers.pool import LOOPBACK, Place

LOOPBACK_LINK = "loopback"

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def bits_per_second(link: str) -> int | None:
    """The rate of a link such as "100mbit" or "1gbit"; None for loopback."""
    return None if link == LOOPBACK_LINK else read_rate(link, otherwise=LOOPBACK_LINK)


def read_rate(text: str, *, otherwise: str) -> int:
    """Bits per second. ``otherwise`` is the word that is allowed instead of a rate."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})(kbit|mbit|gbit)", text)
    if match is None:
        raise ConfigError(f"bench: link {text!r}, expected {otherwise} or a rate such as 1gbit")
    return int(match[1]) * _UNITS[match[2]]


@contextmanager
def places_on(link: str, count: int) -> Iterator[list[Place]]:
    """Places for ``count`` processes, whose hosts each send and receive at the link's rate."""
    rate = bits_per_second(link)
    if rate is None:
        yield [LOOPBACK] * count
        return
    with hosts(count) as network:
        network.limit(rate)
        yield [place_on(host) for host in network.hosts]


def place_on(host: Host) -> Place:
    return Place(host.address, host.interface, host.prefix)


ALONE = "no exchange"
ALLREDUCE = "gloo allreduce"
LOGS = ("off", "on", "fsync")
"""No log; a log that survives the end of the server; one that survives a power cut."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A number of workers that exchange in one ``way``: a recipe, ALLREDUCE or ALONE.

    ``log`` is one of LOGS, or empty where there is no server.
    """

    workers: int
    way: str
    log: str = ""

    def __str__(self) -> str:
        log = f", log {self.log}" if self.log else ""
        return f"{self.way}{log}, {self.workers} workers"


@dataclass(frozen=True, slots=True)
class ServerBench:
    """What to measure.

    In its turn a cell makes one step to warm up, and then ``steps`` that are timed. ``link`` is
    loopback or a rate such as "1gbit". With ``optimizer`` a step includes that of the optimizer,
    with ``keys`` workers and servers talk by TLS.
    ``folder`` is for logs, None for the system's choice. Every request must be answered within
    ``deadline_seconds``.
    """

    workers: tuple[int, ...]
    recipes: tuple[str, ...]
    logs: tuple[str, ...]
    model: SyntheticModel
    limits: Limits
    link: str = LOOPBACK_LINK
    servers: int = 1
    steps: int = 5
    optimizer: bool = False
    keys: bool = False
    folder: Path | None = None
    deadline_seconds: float = 60.0

    def __post_init__(self) -> None:
        bits_per_second(self.link)
        check_whole(self.servers, least=1, owner="bench", field="servers")
        check_whole(self.steps, least=1, owner="bench", field="steps")
        check_positive(self.deadline_seconds, owner="bench", field="deadline_seconds")
        for count in self.workers:
            check_whole(count, least=1, owner="bench", field="workers")
        for log in self.logs:
            check_choice(log, LOGS, owner="bench", field="log")
        for recipe in self.recipes:
            read_recipe(recipe)
        if not (self.workers and self.recipes and self.logs):
            raise ConfigError("bench: at least one of workers, recipes and logs is needed")

    def cells(self) -> list[Cell]:
        """In the order of the report: what others are compared with comes first."""
        return [cell for workers in sorted(set(self.workers)) for cell in self._cells_of(workers)]

    def _cells_of(self, workers: int) -> Iterator[Cell]:
        yield Cell(workers, ALONE)
        yield Cell(workers, ALLREDUCE)
        for recipe in dict.fromkeys(self.recipes):
            yield from (Cell(workers, recipe, log) for log in LOGS if log in self.logs)
