"""What the server benchmark compares: ways to exchange gradients, for some numbers of workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import ConfigError
from thinwire.lab.bench.rounds import Limits
from thinwire.lab.bench.server_given import Given
from thinwire.lab.bench.server_link import LOOPBACK_LINK, bits_per_second
from thinwire.settings import check_choice, check_positive, check_whole
from thinwire.spelling import read_recipe

ALONE = "no exchange"
ALLREDUCE = "gloo allreduce"
LOGS = ("off", "on", "fsync")
"""No log; a log that survives the end of the server; one that survives a power cut, too."""


@dataclass(frozen=True, slots=True)
class Cell:
    """So many workers that exchange in one ``way``: a recipe, ALLREDUCE or ALONE.

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

    ``steps`` of a cell follow one another, after one that does not count; then the next cell has
    its turn. ``link`` is loopback or a rate such as "1gbit": see ``server_link``. With
    ``optimizer`` a step includes that of the optimizer. ``folder`` is where logs are kept
    meanwhile, None for the system's choice. Whatever is waited for must happen within
    ``deadline_seconds``.
    """

    workers: tuple[int, ...]
    recipes: tuple[str, ...]
    logs: tuple[str, ...]
    given: Given
    limits: Limits
    link: str = LOOPBACK_LINK
    servers: int = 1
    steps: int = 5
    optimizer: bool = False
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
