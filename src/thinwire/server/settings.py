"""How patient a server is."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.settings import check_choice, check_positive, check_whole

ON_LOSS = ("stop", "continue")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """A worker that is away for ``loss_seconds`` is lost: then ``on_loss`` is "stop" (everyone) or
    "continue" (without it). A version that is open for ``late_seconds`` is worth a warning. After
    ``snapshot_nbytes`` of log, or four times the size of the state if that is more, the state is
    kept as well, so that a restart need not begin at the beginning.
    """

    loss_seconds: float = 60.0
    on_loss: str = "stop"
    late_seconds: float = 10.0
    snapshot_nbytes: int = 64 << 20

    def __post_init__(self) -> None:
        check_positive(self.loss_seconds, owner="Server", field="loss_seconds")
        check_choice(self.on_loss, ON_LOSS, owner="Server", field="on_loss")
        check_positive(self.late_seconds, owner="Server", field="late_seconds")
        check_whole(self.snapshot_nbytes, least=1, owner="Server", field="snapshot_nbytes")


DEFAULT_SETTINGS = ServiceSettings()
