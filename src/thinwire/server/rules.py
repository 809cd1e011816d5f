"""How many pushes make an update, and how old they may be."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire.settings import check_whole


@dataclass(frozen=True, slots=True)
class Rules:
    """``workers`` is the n of the mean, always. ``quorum`` pushes close a version. A push that was
    computed on a version more than ``staleness`` behind the newest is refused.

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
