"""What a user says of a run: names and numbers, so that it travels to other processes as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire.settings import check_choice, check_positive, check_whole

BACKENDS = ("virtual", "ddp", "server")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """``data`` is the folder of data sets (None: that of $THINWIRE_DATA), ``out`` the run's own.

    What is None is as the task says. ``save_steps``: how often to save (None: after every epoch).
    ``servers`` is how many, for the backend of that name; ``threads`` are those of each process.
    """

    task: str
    out: str
    scale: str = "small"
    recipe: str = "dense"
    workers: int = 4
    backend: str = "virtual"
    servers: int = 1
    seed: int = 0
    epochs: float | None = None
    steps: int | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    threads: int = 1
    save_steps: int | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        check_choice(self.backend, BACKENDS, owner="train", field="backend")
        for field in ("workers", "servers", "threads"):
            check_whole(getattr(self, field), least=1, owner="train", field=field)
        check_whole(self.seed, least=0, owner="train", field="seed")
        for field in ("steps", "save_steps"):
            if getattr(self, field) is not None:
                check_whole(getattr(self, field), least=1, owner="train", field=field)
        for field in ("epochs", "learning_rate"):
            if getattr(self, field) is not None:
                check_positive(getattr(self, field), owner="train", field=field)
        if self.epochs is not None and self.steps is not None:
            raise ConfigError("train: give steps or epochs, not both")
