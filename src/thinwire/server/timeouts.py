"""``Timeouts``: which workers and connections a server gives up. Callers pass the time."""

from __future__ import annotations

from thinwire.server.aggregate import Aggregate
from thinwire.server.members import Members, Peer
from thinwire.server.settings import Rules, ServiceSettings
from thinwire.transport.base import PeerId
from thinwire.wire.messages import Late

JOIN_SECONDS = 20.0
"""From the first frame to Join. A worker sends both at once, but may be frozen in between."""
_MOST_UNJOINED = 64
"""Peers that have sent something and not joined, beyond the number of workers."""
_LEAVE_SECONDS = 5.0
"""How long a connection may stay after its Leave was sent."""
_MOST_ENDED = 64
"""Connections that stay so long: their places at this server are for others."""
_MOST_IGNORED = 64
"""Frames of a peer whose session has ended: until it is disconnected they take memory."""


class Timeouts:
    """Which waits are over."""

    def __init__(self, settings: ServiceSettings, rules: Rules, *, now: float) -> None:
        self._settings, self._rules = settings, rules
        self._waiting_since = self._warned = now

    def restart(self, *, now: float) -> None:
        """A version was opened or closed: waiting for the next begins."""
        self._waiting_since = self._warned = now

    def late(self, aggregate: Aggregate | None, *, now: float) -> tuple[Late, float] | None:
        """The oldest open version, its late workers and the seconds it waits, every so often."""
        if aggregate is None or now - self._warned < self._settings.late_seconds:
            return None
        self._warned = now
        for version, workers in aggregate.late().items():
            return Late(version, tuple(workers)), now - self._waiting_since
        return None

    def lost(self, members: Members, *, now: float) -> list[tuple[int, float]]:
        """Workers that are away for too long, and for how many seconds."""
        away = [(worker, now - since) for worker, since in members.away_since.items()]
        return [(worker, seconds) for worker, seconds in away if self._is_loss(seconds)]

    def _is_loss(self, seconds: float) -> bool:
        return seconds > self._settings.loss_seconds

    def unjoined(self, members: Members, *, now: float) -> list[Peer]:
        """Peers that take the place of a worker without joining."""
        most = self._rules.workers + _MOST_UNJOINED
        return members.unjoined(before=now - JOIN_SECONDS, most=most)

    def ended(self, members: Members, *, now: float) -> list[PeerId]:
        """Connections to close whose session has ended; ``members`` forgets them."""
        return members.overdue(
            before=now - _LEAVE_SECONDS, most=_MOST_ENDED, most_frames=_MOST_IGNORED
        )


def loss_text(
    worker: int,
    seconds: float,
    aggregate: Aggregate | None,
    report: tuple[int, float] | None,
) -> str:
    """What is lost with a worker. ``report`` is its last step and the norm of its residual then."""
    version = 0 if aggregate is None else aggregate.version
    text = f"worker {worker} is lost: away for {seconds:.0f} s, at version {version}; "
    if report is None:
        text += "what it owed is not known"
    else:
        step, owed = report
        text += f"it owed a residual of norm {owed:.6g} after step {step}"
    return text + _others_awaited(worker, aggregate)


def _others_awaited(worker: int, aggregate: Aggregate | None) -> str:
    """Names other missing workers: this one may have left because another never came."""
    for version, late in ({} if aggregate is None else aggregate.late()).items():
        others = [other for other in late if other != worker]
        if others:
            return f"; version {version} waits for workers {others}"
    return ""
