"""What a server takes in and sends in one turn: ``PushIntake`` and ``Outbox``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from thinwire.errors import RemoteProtocolError
from thinwire.rate_limited_log import RateLimitedLog
from thinwire.server.aggregate import Verdict
from thinwire.server.journal import Journal, in_frames
from thinwire.server.members import Members, Peer
from thinwire.server.settings import Rules
from thinwire.server.timeouts import Timeouts
from thinwire.server.training import Training
from thinwire.transport.base import Listener
from thinwire.wire.messages import CaughtUp, Counted, Message, Push, Reason, Refusal, Update

_CATCH_UP_NBYTES = 8 << 20
"""Old updates that are sent at once: a peer that reads at all can take so many."""


class Outbox:
    """Replies to single peers, and updates for all workers.

    ``sent_nbytes`` counts frames, also those to peers that are gone.
    """

    def __init__(self, listener: Listener, journal: Journal, members: Members) -> None:
        self.sent_nbytes = 0
        self._listener, self._journal, self._members = listener, journal, members
        self._replies: list[tuple[Peer, Message, int]] = []
        self._updates: list[tuple[Update, bytes]] = []

    def reply(self, peer: Peer, message: Message, *, step: int = 0) -> None:
        """Send ``message`` at the end of this turn."""
        peer.session.send(message, step=step)
        self._replies.append((peer, message, step))

    def publish(self, updates: Iterable[Update]) -> bool:
        """Send these to all workers at the end of this turn; whether there were any."""
        parts = [(part, self._journal.keep_update(part)) for part in in_frames(updates)]
        self._updates += parts
        return bool(parts)

    def catch_up(self, peer: Peer, *, after: int) -> None:
        """Send old updates; a worker that lacks more of them asks again."""
        version = after
        for update in self._journal.history(after=after, most_nbytes=_CATCH_UP_NBYTES):
            version = update.version
            self.reply(peer, update)
        self.reply(peer, CaughtUp(version))

    def flush(self) -> None:
        """Commit, then send: updates of first layers first, because the next forward needs them."""
        self._journal.commit()
        for peer in list(self._members.ready()):
            if peer.wanted is not None:
                self.catch_up(peer, after=peer.wanted)
                peer.wanted = None
        updates = sorted(self._updates, key=_order)
        replies, self._updates, self._replies = self._replies, [], []
        for peer, message, step in replies:
            self._send(peer, self._journal.frame(message, step=step))
        for update, frame in updates:
            for peer in self._members.ready():
                peer.session.send(update)
                self._send(peer, frame)

    def _send(self, peer: Peer, frame: bytes) -> None:
        self.sent_nbytes += len(frame)
        self._listener.send(peer.id, frame)


def _order(published: tuple[Update, bytes]) -> tuple[int, int]:
    update, _ = published
    return update.version, update.entries[0].piece


MOST_STEP = (1 << 62) - 1
"""A worker that comes back is told the number of its next step, which must fit in its field."""


class PushIntake:
    """``pieces`` counts those that were accepted, stale and repeated."""

    def __init__(
        self,
        rules: Rules,
        training: Training,
        journal: Journal,
        outbox: Outbox,
        timeouts: Timeouts,
        warnings: RateLimitedLog,
    ) -> None:
        self.pieces: Counter[str] = Counter()
        self._rules, self._training, self._journal = rules, training, journal
        self._outbox, self._timeouts, self._warnings = outbox, timeouts, warnings

    def take(self, peer: Peer, step: int, push: Push, packed: bytes, *, now: float) -> list[Update]:
        """The updates of versions that this push closes. Raises RemoteProtocolError.

        ``packed`` is the frame of ``push``.
        """
        aggregate, worker = self._training.running(), peer.session.worker
        if step > MOST_STEP:
            raise RemoteProtocolError(f"push of worker {worker}: step {step}, beyond {MOST_STEP}")
        verdict = aggregate.judge(worker, step, push)
        if verdict.accepted:
            self._journal.keep(packed)
            if not any(aggregate.open.values()):  # this push opens a version
                self._timeouts.restart(now=now)
        overflowed = aggregate.overflowed
        updates = aggregate.count(worker, step, push, verdict)
        if aggregate.overflowed > overflowed:
            text = f"a version with a push of worker {worker} is not finite, and is thrown away"
            self._warnings.note(text, now=now)
        self._acknowledge(peer, step, push, verdict)
        return updates

    def _acknowledge(self, peer: Peer, step: int, push: Push, verdict: Verdict) -> None:
        for name in ("accepted", "stale", "repeated"):
            self.pieces[name] += len(getattr(verdict, name))
        version = self._training.version
        if verdict.stale:
            behind, allowed = version - push.version, self._rules.staleness
            text = f"{behind} versions behind, {allowed} allowed, once on each"
            refusal = Refusal(version, Reason.STALE, text, verdict.stale)
            self._outbox.reply(peer, refusal, step=step)
        counted = tuple(sorted((*verdict.accepted, *verdict.repeated)))
        self._outbox.reply(peer, Counted(version, counted), step=step)
