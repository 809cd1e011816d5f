"""``LinksBench``: what the benchmark of links compares, and how."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from thinwire.checks import check_at_least, check_choice, check_positive, check_whole
from thinwire.errors import ConfigError
from thinwire.local.rounds import Rounds
from thinwire_lab.bench.links.models import BACKWARD_MS, LINEAR, MODELS, shapes_of
from thinwire_lab.bench.rounds import Limits
from thinwire_lab.bench.server.cells import read_rate
from thinwire_lab.bench.synthetic import BACKWARDS

UNLIMITED = "unlimited"
NO_DELAY = "0ms"
RATES = ("100mbit", "1gbit", "10gbit", UNLIMITED)
SERVERS = "servers"

_RESERVE_NBYTES = 400_000_000
"""Memory of each process, besides its gradients."""
_DENSE_TRIPS = 8
"""A timeout allows a step this many transfers of all gradients over the link."""
_SLOWEST_NBYTES_PER_SECOND = 5e7
"""Of gradients on a busy processor: timeouts allow for that, too."""


@dataclass(frozen=True, slots=True)
class LinkCase:
    """One way to exchange gradients. ``copies`` is its memory on a host, in gradients.

    Thinwire's cases have a ``recipe``, as in Python, and an ``exchange``, with DDP or without.
    Others are known by name. ``sharded``: a host is a replica of a network, and each of its workers
    has a part. With ``rounds`` weights are exchanged instead, every so many steps.
    """

    name: str
    label: str
    copies: float
    recipe: str = ""
    exchange: str = ""
    ddp: bool = True
    sharded: bool = False
    rounds: Rounds | None = None

    def turn(self, steps: int) -> int:
        """The steps of its turn: at least so many, and whole rounds."""
        return steps if self.rounds is None else math.ceil(steps / self.period) * self.period

    @property
    def period(self) -> int:
        """Steps after which it does the same again."""
        return 1 if self.rounds is None else self.rounds.longest


NONE = LinkCase("none", "no communication", 1)
SILENT = LinkCase("silent", "DDP, nothing sent", 1)
DDP = LinkCase("ddp", "DDP fp32", 1)
FP16 = LinkCase("fp16", "DDP fp16 hook", 1.5)
POWERSGD = {
    LinkCase("powersgd1", "PowerSGD rank 1", 3): 1,
    LinkCase("powersgd4", "PowerSGD rank 4", 3): 4,
}
EVERY = 32
_LATER = 28
"""Steps of an exchange that is under way while training goes on."""
POST_LOCAL = LinkCase("post-local", f"post-local SGD, every {EVERY}", 2.5, rounds=Rounds(EVERY))
_ONE_BIT, _TOPK = "doublesqueeze(OneBit())", "doublesqueeze(TopK(0.001))"
_DGC = "dgc(0.001, warmup_steps=0)"
_ADAM = "adam(first=1)"
"""Steps that carry momentum are what is measured: few of the first ones are full."""
OURS = (
    LinkCase("dense", "dense, sharded", 2.5, "dense", "sharded"),
    LinkCase("onebit", "1-bit, sharded", 5, _ONE_BIT, "sharded"),
    LinkCase("onebit-allgather", "1-bit, allgather", 4, _ONE_BIT, "allgather"),
    LinkCase("dgc", "DGC 0.1 %, sharded", 6, _DGC, "sharded"),
    LinkCase("dgc-allgather", "DGC 0.1 %, allgather", 6, _DGC, "allgather"),
    LinkCase("topk", "top-k 0.1 %, sharded", 5, _TOPK, "sharded"),
    LinkCase("topk-allgather", "top-k 0.1 %, allgather", 4, _TOPK, "allgather"),
    LinkCase("adam", "Adam in 1 bit, sharded", 8, _ADAM, "sharded"),
    LinkCase("adam-allgather", "Adam in 1 bit, allgather", 8, _ADAM, "allgather"),
)
OURS_WITHOUT_DDP = (
    LinkCase("onebit-module", "1-bit, no DDP", 4, _ONE_BIT, "allgather", ddp=False),
    LinkCase("dgc-module", "DGC 0.1 %, no DDP", 6, _DGC, "allgather", ddp=False),
    LinkCase("topk-module", "top-k 0.1 %, no DDP", 4, _TOPK, "allgather", ddp=False),
    LinkCase("adam-module", "Adam in 1 bit, no DDP", 8, _ADAM, "allgather", ddp=False),
)
OURS_ON_SERVERS = (
    LinkCase("onebit-servers", "1-bit, servers", 6, _ONE_BIT, SERVERS),
    LinkCase("dgc-servers", "DGC 0.1 %, servers", 6, _DGC, SERVERS),
)
_DILOCO = "diloco(lr=0.8, momentum=0.5)"
OURS_LOCAL = (
    LinkCase(
        "local", f"1-bit, every {EVERY}", 6, _DILOCO, "sharded", ddp=False, rounds=Rounds(EVERY)
    ),
    LinkCase(
        "local-overlap",
        f"1-bit, every {EVERY}, overlapped",
        7,
        _DILOCO,
        "sharded",
        ddp=False,
        rounds=Rounds(EVERY, _LATER),
    ),
    LinkCase(
        "local-sparse",
        f"1/64 in 2 bits, every {EVERY}, overlapped",
        6,
        "sparseloco()",
        "sharded",
        ddp=False,
        rounds=Rounds(EVERY, _LATER),
    ),
    LinkCase(
        "local-float32",
        f"DiLoCo float32, every {EVERY}",
        8,
        "diloco(Float32())",
        "sharded",
        ddp=False,
        rounds=Rounds(EVERY),
    ),
)
HSDP = LinkCase("hsdp", "torch's HSDP", 3, ddp=False, sharded=True)
HSDP_SILENT = LinkCase("fsdp", "FSDP2, nothing sent", 3, ddp=False, sharded=True)
OURS_SHARDED = tuple(
    LinkCase(f"fsdp-{name}", f"FSDP2, {label}", 6, recipe, "allgather", ddp=False, sharded=True)
    for name, label, recipe in (
        ("dense", "dense", "dense"),
        ("onebit", "1-bit", _ONE_BIT),
        ("adam", "Adam in 1 bit", _ADAM),
    )
)
CASES = {
    case.name: case
    for case in (
        *(NONE, SILENT, DDP, FP16),
        *POWERSGD,
        POST_LOCAL,
        *OURS,
        *OURS_WITHOUT_DDP,
        *OURS_LOCAL,
        *OURS_ON_SERVERS,
        *(HSDP_SILENT, HSDP),
        *OURS_SHARDED,
    )
}
DEFAULT_CASES = tuple(
    name for name, case in CASES.items() if case.exchange != SERVERS and not case.sharded
)
SHARDED_CASES = tuple(name for name, case in CASES.items() if case.sharded)


@dataclass(frozen=True, slots=True)
class LinkModel:
    """What every host computes. ``width`` and ``batch`` are for the model "linear".

    The backward of the others takes ``backward_ms`` (None: a time that suits the model), in which
    they sleep or compute. Buckets are as DDP makes them, the first one small so that sending begins
    early, or all of ``bucket_mb``. With ``optimizer`` a step includes that of the optimizer.
    """

    name: str = MODELS[0]
    width: int = 1024
    batch: int = 16
    backward_ms: float | None = None
    backward: str = BACKWARDS[0]
    bucket_mb: float | None = None
    optimizer: bool = False

    def __post_init__(self) -> None:
        check_choice(self.name, MODELS, owner="bench", field="model")
        check_choice(self.backward, BACKWARDS, owner="bench", field="backward")
        check_whole(self.width, least=1, owner="bench", field="width")
        check_whole(self.batch, least=1, owner="bench", field="batch")
        if self.bucket_mb is not None:
            check_positive(self.bucket_mb, owner="bench", field="bucket_mb")
        if self.backward_ms is not None:
            check_at_least(self.backward_ms, 0, owner="bench", field="backward_ms")
            if self.name == LINEAR:
                raise ConfigError("bench: the model linear computes, so it takes no backward_ms")

    @property
    def numel(self) -> int:
        return sum(shape.numel for shape in shapes_of(self.name, self.width))

    @property
    def nbytes(self) -> int:
        """Of all gradients, in float32."""
        return 4 * self.numel

    @property
    def synthetic_ms(self) -> float:
        """How long a synthetic backward takes."""
        return BACKWARD_MS[self.name] if self.backward_ms is None else self.backward_ms


@dataclass(frozen=True, slots=True)
class LinksBench:
    """What to measure: in its turn a case makes ``steps`` steps, or whole rounds.

    ``limits`` are those of each of the ``rates``. ``delay`` is added to a round trip between any
    two hosts, half of it on each way. With ``shards`` each host has so many workers, which hold
    parts of one replica; no ``cases`` are all that fit. A request must be answered within
    ``deadline_seconds`` and the time that the link itself needs. ``trace`` is a file for the
    timeline of some more steps of every case.
    """

    limits: Limits
    model: LinkModel = field(default_factory=LinkModel)
    rates: tuple[str, ...] = RATES
    cases: tuple[str, ...] = ()
    shards: int = 1
    delay: str = NO_DELAY
    hosts: int = 2
    steps: int = 3
    deadline_seconds: float = 60.0
    trace: Path | None = None

    def __post_init__(self) -> None:
        check_whole(self.hosts, least=2, owner="bench", field="hosts")
        check_whole(self.shards, least=1, owner="bench", field="shards")
        self._check_cases()
        check_whole(self.steps, least=1, owner="bench", field="steps")
        check_positive(self.deadline_seconds, owner="bench", field="deadline_seconds")
        for rate in self.rates:
            rate_of(rate)
        delay_seconds_of(self.delay)
        if not self.rates:
            raise ConfigError("bench: at least one rate is needed")

    def _check_cases(self) -> None:
        for name in self.cases:
            check_choice(name, tuple(CASES), owner="bench", field="case")
            if CASES[name].sharded != (self.shards > 1):
                raise ConfigError(
                    f"bench: {name} needs --shards 2 or more, all other cases --shards 1: choose "
                    f"among {', '.join(SHARDED_CASES if self.shards > 1 else DEFAULT_CASES)}"
                )

    def chosen(self) -> list[LinkCase]:
        """In the order of the report: what others are compared with comes first."""
        names = self.cases or (SHARDED_CASES if self.shards > 1 else DEFAULT_CASES)
        return [case for name, case in CASES.items() if name in names]

    def servers(self) -> int:
        """One on each host, if any case needs them."""
        return self.hosts if any(case.exchange == SERVERS for case in self.chosen()) else 0

    def seconds_for(self, rate: str, steps: int) -> float:
        """The timeout of ``steps`` steps."""
        bits = rate_of(rate)
        link = 0.0 if bits is None else _DENSE_TRIPS * 8 * self.model.nbytes / bits
        work = self.model.nbytes / _SLOWEST_NBYTES_PER_SECOND + self.model.synthetic_ms / 1e3
        return self.deadline_seconds + steps * (link + work)

    def needed_nbytes(self) -> int:
        """About the memory of all processes."""
        copies = 2 + sum(case.copies for case in self.chosen())
        each = _RESERVE_NBYTES + copies * self.model.nbytes
        return round(self.hosts * self.shards * each) + self.servers() * _RESERVE_NBYTES

    def check_memory(self, free_nbytes: int) -> None:
        """Refuse to fill the memory: the system might then kill any process of this machine."""
        if self.needed_nbytes() > free_nbytes:
            raise ConfigError(
                f"bench: {len(self.chosen())} cases on {self.hosts} hosts need about "
                f"{self.needed_nbytes() / 1e9:.1f} GB, {free_nbytes / 1e9:.1f} GB are free: choose "
                "fewer with --case"
            )


def rate_of(text: str) -> int | None:
    """Bits per second of "100mbit" or "1gbit"; None for UNLIMITED."""
    return None if text == UNLIMITED else read_rate(text, otherwise=UNLIMITED)


_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def delay_seconds_of(text: str) -> float:
    """Of "50ms", "0.5ms" or "1s"."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(us|ms|s)", text)
    if match is None:
        raise ConfigError(f"bench: delay {text!r}, expected a time such as 50ms")
    return float(match[1]) * _SECONDS[match[2]]
