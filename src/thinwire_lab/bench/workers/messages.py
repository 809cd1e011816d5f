"""``Request`` and ``Reply``: what the processes of a benchmark read and write, as lines of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Listen:
    """To a server: serve the ``workers`` of a cell. It replies with its address.

    ``keys`` is the folder with keys of servers and workers, empty for none.
    """

    host: str
    recipe: str
    workers: int
    log: str
    folder: str
    keys: str = ""


@dataclass(frozen=True, slots=True)
class Used:
    """To a server: reply with the processor time used so far."""


@dataclass(frozen=True, slots=True)
class Join:
    """To a worker: form one process group with all others, and one for each of ``sizes``."""

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
    keys: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """To a worker: do steps of a cell, one more first. It replies what ``steps`` of them took."""

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
    shards: int
    deadline_seconds: float
    servers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Record:
    """To a trainer: do steps of a cell, and write their timeline to ``file``."""

    cell: int
    steps: int
    title: str
    file: str


@dataclass(frozen=True, slots=True)
class Begin:
    """To a learner: get ready to train one ``way`` for so many ``steps``."""

    way: str
    scale: str
    steps: int
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Advance:
    """To a learner: make the next steps. It replies with the training loss of the last one."""

    steps: int


@dataclass(frozen=True, slots=True)
class Score:
    """To a learner: reply with the loss of held-out text."""


Request = Listen | Used | Join | Attach | Run | Prepare | Record | Begin | Advance | Score
_KINDS: tuple[type[Request], ...] = (
    *(Listen, Used, Join, Attach, Run, Prepare, Record),
    *(Begin, Advance, Score),
)
_REQUESTS: dict[str, type[Request]] = {kind.__name__: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a request; fields it does not ask for are empty. ``error`` is why it failed."""

    error: str = ""
    address: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    sent_nbytes: int = 0
    received_nbytes: int = 0
    step_seconds: list[float] = field(default_factory=list)
    loss: float | None = None


def write_request(request: Request) -> str:
    return json.dumps({"request": type(request).__name__, **asdict(request)})


def read_request(line: str) -> Request:
    fields = json.loads(line)
    return _REQUESTS[fields.pop("request")](**fields)


def write_reply(reply: Reply) -> str:
    return json.dumps(asdict(reply))


def read_reply(line: str) -> Reply:
    return Reply(**json.loads(line))
