"""What a process of a run is told when it is started, as JSON in its arguments."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from thinwire.lab.train.settings import RunSettings

WORKER, SERVER = "worker", "server"


@dataclass(frozen=True, slots=True)
class Order:
    """``meeting`` is a folder where the processes find each other: a new one for every start."""

    role: str
    rank: int
    settings: RunSettings
    recipe: str
    meeting: str

    @property
    def store(self) -> Path:
        return Path(self.meeting) / "store"

    def write(self) -> str:
        return json.dumps(asdict(self))


def read_order(text: str) -> Order:
    values = json.loads(text)
    values["settings"] = RunSettings(**values["settings"])
    return Order(**values)
