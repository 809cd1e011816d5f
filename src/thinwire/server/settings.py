"""``Rules``: which pushes close a version. ``ServiceSettings``: how long a server waits."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.checks import check_choice, check_positive, check_whole
from thinwire.defaults import LATE_SECONDS, LOSS_SECONDS, SNAPSHOT_NBYTES
from thinwire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rules:
    """The mean is over ``workers``, always. ``quorum`` pushes close a version. A push computed on a
    version more than ``staleness`` behind the newest is refused.

    Synchronous training is quorum = workers, staleness = 0.
    """

    workers: int
    quorum: int
    staleness: int

    def __post_init__(self) -> None:
        check_whole(self.workers, least=1, owner="server", field="workers")
        check_whole(self.quorum, least=1, owner="server", field="quorum")
        check_whole(self.staleness, least=0, owner="server", field="staleness")
        if self.quorum > self.workers:
            raise ConfigError(
                f"server: a quorum of {self.quorum} among {self.workers} workers can never be met"
            )

    @classmethod
    def synchronous(cls, workers: int) -> Rules:
        return cls(workers, workers, 0)


ON_LOSS = ("stop", "continue")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """A worker that is disconnected for ``loss_seconds`` is lost: ``on_loss`` "stop" ends the run,
    "continue" goes on without it. A version that is open for ``late_seconds`` causes a warning.
    After ``snapshot_nbytes`` of log, or four times the size of the state if that is more, a
    snapshot of the state shortens the next restart.
    """

    loss_seconds: float = LOSS_SECONDS
    on_loss: str = "stop"
    late_seconds: float = LATE_SECONDS
    snapshot_nbytes: int = SNAPSHOT_NBYTES

    def __post_init__(self) -> None:
        check_positive(self.loss_seconds, owner="Server", field="loss_seconds")
        check_choice(self.on_loss, ON_LOSS, owner="Server", field="on_loss")
        check_positive(self.late_seconds, owner="Server", field="late_seconds")
        check_whole(self.snapshot_nbytes, least=1, owner="Server", field="snapshot_nbytes")


DEFAULT_SETTINGS = ServiceSettings()
