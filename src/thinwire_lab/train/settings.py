"""``RunSettings`` of a user, and ``ProcessSettings`` of each process, which travel as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from thinwire.checks import check_choice, check_positive, check_whole
from thinwire.errors import ConfigError
from thinwire.local.rounds import Rounds

BACKENDS = ("virtual", "ddp", "server")
WORKER, SERVER = "worker", "server"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """``data`` is the folder of data sets (None: that of $THINWIRE_DATA), ``out`` that of the run.

    None stands for the task's own setting. ``save_steps``: how often to save a checkpoint (None:
    after every epoch). ``servers`` counts for the backend of that name; ``threads`` is for each
    process. With ``local_steps`` workers train alone for so many steps between exchanges; ``delay``
    and ``fragments`` are those of ``Rounds``.
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
    local_steps: int | None = None
    delay: int = 0
    fragments: int = 1

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
        if self.local_steps is None and (self.delay, self.fragments) != (0, 1):
            raise ConfigError("train: delay and fragments are for local steps: give --local-steps")
        if self.fragments > 1 and self.backend == "server":
            raise ConfigError("train: servers answer for the whole network: leave fragments out")

    @property
    def rounds(self) -> Rounds | None:
        """When workers exchange, if they make local steps."""
        if self.local_steps is None:
            return None
        return Rounds(self.local_steps, self.delay, self.fragments)


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What one process of a run is started with. ``folder`` is where it finds the others (see
    ``rendezvous``)."""

    role: str
    rank: int
    run: RunSettings
    recipe: str
    folder: str

    @property
    def rendezvous(self) -> Path:
        return Path(self.folder)

    @property
    def gloo_store(self) -> Path:
        return self.rendezvous / "store"

    def write(self) -> str:
        return json.dumps(asdict(self))


def read_process_settings(text: str) -> ProcessSettings:
    """From what ``write`` made."""
    values = json.loads(text)
    values["run"] = RunSettings(**values["run"])
    return ProcessSettings(**values)
