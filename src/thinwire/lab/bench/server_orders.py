"""What the processes of a benchmark are told, and answer: one line of JSON each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Listen:
    """To a server: serve the ``workers`` of a cell. It answers with its address."""

    host: str
    recipe: str
    workers: int
    log: str
    folder: str


@dataclass(frozen=True, slots=True)
class Used:
    """To a server: how much processor time have you used?"""


@dataclass(frozen=True, slots=True)
class Meet:
    """To a worker: make one process group with all others, and one for each number of ``sizes``."""

    rank: int
    ranks: int
    store: str
    sizes: list[int]
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Attach:
    """To a worker: get ready for a cell."""

    cell: int
    way: str
    rank: int
    workers: int
    numel: int
    backward_ms: float
    backward: str
    optimizer: bool
    deadline_seconds: float
    servers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """To a worker: do steps of a cell, one more first. It answers what ``steps`` of them took."""

    cell: int
    steps: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """To a trainer: get ready for a case of a model, both by name, as ``cell``."""

    cell: int
    case: str
    rank: int
    model: str
    width: int
    batch: int
    backward_ms: float
    backward: str
    bucket_mb: float | None
    optimizer: bool
    deadline_seconds: float
    servers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Record:
    """To a trainer: do steps of a cell, and write their timeline to ``file``."""

    cell: int
    steps: int
    title: str
    file: str


Order = Listen | Used | Meet | Attach | Run | Prepare | Record
_KINDS: tuple[type[Order], ...] = (Listen, Used, Meet, Attach, Run, Prepare, Record)
_ORDERS: dict[str, type[Order]] = {kind.__name__: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked for; the rest is empty. ``error`` is a sentence if it could not be done."""

    error: str = ""
    address: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    sent_nbytes: int = 0
    received_nbytes: int = 0
    step_seconds: list[float] = field(default_factory=list)


def write_order(order: Order) -> str:
    return json.dumps({"order": type(order).__name__, **asdict(order)})


def read_order(line: str) -> Order:
    fields = json.loads(line)
    return _ORDERS[fields.pop("order")](**fields)


def write_answer(answer: Answer) -> str:
    return json.dumps(asdict(answer))


def read_answer(line: str) -> Answer:
    return Answer(**json.loads(line))
