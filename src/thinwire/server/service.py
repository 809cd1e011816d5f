"""``Service``: the loop of a parameter server, between its listener, its training and its journal.

One thread does everything here; the transport and the kernels have their own. It works in turns:
take what has come, commit it to the journal, then answer. A peer is told nothing that a restart
could forget, and one commit serves all that came in the meantime.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from thinwire.errors import RemoteProtocolError, WorkerLost
from thinwire.rate_limited_log import RateLimitedLog
from thinwire.recipe import Recipe
from thinwire.server.admission import RunState, check_handshake, refusal_for
from thinwire.server.aggregate import Aggregate
from thinwire.server.journal import Journal
from thinwire.server.log.recovery import Recovery
from thinwire.server.members import Members, Peer
from thinwire.server.settings import DEFAULT_SETTINGS, Rules, ServiceSettings
from thinwire.server.timeouts import JOIN_SECONDS, Timeouts, loss_text
from thinwire.server.training import Training
from thinwire.server.turn import Outbox, PushIntake
from thinwire.transport.base import Listener, PeerGone, Received
from thinwire.watch.stats import ServerStats
from thinwire.wire import frame as frames
from thinwire.wire.body import shortened
from thinwire.wire.frame import Frame
from thinwire.wire.messages import (
    CatchUp,
    Describe,
    Join,
    Leave,
    Message,
    Push,
    Reason,
    Report,
    Update,
    Welcome,
)
from thinwire.wire.session import State

_logger = logging.getLogger(__name__)

_OTHER_RUN = "this is another run than yours: was this server started without its log?"
_EVENTS_PER_TURN = 256


class Service:
    """Serves workers until the training is done or a worker is lost.

    With a log, a server that is restarted goes on where it was, bit for bit.
    """

    def __init__(
        self,
        listener: Listener,
        recipe: Recipe,
        rules: Rules,
        *,
        settings: ServiceSettings = DEFAULT_SETTINGS,
        journal: Journal | None = None,
        recovery: Recovery | None = None,
        seed: int = 0,
    ) -> None:
        """``recovery`` is what the log of ``journal`` held when it was opened."""
        self._listener, self._recipe, self._rules = listener, recipe, rules
        self._settings = settings
        self.training = Training(recipe, rules, seed=seed)
        self.journal = Journal() if journal is None else journal
        self.members = Members(self.journal.run, self.journal.epoch)
        self.done = False
        self._outbox = Outbox(listener, self.journal, self.members)
        self._timeouts = Timeouts(settings, rules, now=time.monotonic())
        self._received_nbytes = self._refused = 0
        self._reports: dict[int, tuple[int, float]] = {}
        """Step and norm of the residual that each worker reported last."""
        self._refusals = RateLimitedLog(_logger)
        self._arrivals = RateLimitedLog(_logger, level=logging.INFO)
        self._intake = PushIntake(
            rules, self.training, self.journal, self._outbox, self._timeouts, self._refusals
        )
        if recovery is not None:
            self._recover(recovery)

    def serve(self, *, stop: Callable[[], bool] = lambda: False, tick_seconds: float = 0.2) -> None:
        """Serve until all workers have left, or ``stop`` returns True. Raises WorkerLost."""
        while not self.done and not stop():
            self._turn(tick_seconds)

    def stats(self) -> ServerStats:
        """What happened since this start. Any thread may call it."""
        aggregate, pieces = self.training.aggregate, self._intake.pieces
        return ServerStats(
            version=self.training.version,
            done=self.done,
            connected=tuple(sorted(self.members.workers)),
            lost=tuple(sorted(self.training.lost)),
            accepted_pieces=pieces["accepted"],
            stale_pieces=pieces["stale"],
            repeated_pieces=pieces["repeated"],
            overflowed_pieces=0 if aggregate is None else aggregate.overflowed,
            refused_sessions=self._refused,
            received_nbytes=self._received_nbytes,
            sent_nbytes=self._outbox.sent_nbytes,
        )

    def _turn(self, tick_seconds: float) -> None:
        wait = tick_seconds
        for _ in range(_EVENTS_PER_TURN):
            event = self._listener.receive(deadline_seconds=wait)
            if event is None:
                break
            self._take(event)
            wait = 0.0
            if self.done:  # nothing more may be kept: a log that has ended stays so
                break
        self._check_losses()
        self._check_unjoined()
        self._settle()
        self._check_late()
        self._check_ended()

    def _take(self, event: Received | PeerGone) -> None:
        """Handle one event. A bad frame ends the session of its peer, nothing else."""
        if isinstance(event, PeerGone):
            peer = self.members.gone(event.peer)
            if peer is not None:
                self._end(peer, event.reason)
            return
        peer = self.members.find(event.peer, now=time.monotonic())
        if peer is None:
            return
        self._received_nbytes += len(event.frame)
        try:
            frame = frames.unpack(event.frame)
            if frame.run not in (0, self.members.run):
                self._dismiss(peer, _OTHER_RUN, Reason.EPOCH)
                return
            check_handshake(peer.session, frame, self.training.described)
            message = peer.session.receive(frame)
            self._act(peer, frame, message, bytes(event.frame))
        except RemoteProtocolError as error:
            self._dismiss(peer, str(error))

    def _act(self, peer: Peer, frame: Frame, message: Message, packed: bytes) -> None:
        if isinstance(message, Describe):
            peer.described = packed
        elif isinstance(message, Join):
            self._join(peer, message, packed)
        elif isinstance(message, Push):
            now = time.monotonic()
            self._publish(self._intake.take(peer, frame.step, message, packed, now=now))
        elif isinstance(message, CatchUp):
            peer.wanted = message.version  # answered once in a turn, however often it asks
        elif isinstance(message, Report):
            self._reports[peer.session.worker] = (frame.step, message.owed)
        elif isinstance(message, Leave):
            self._leave(peer, message, packed)

    def _join(self, peer: Peer, join: Join, packed: bytes) -> None:
        worker, description = peer.session.worker, peer.description
        refusal = refusal_for(worker, join, description, self._run_state(peer))
        if refusal is not None:
            self._outbox.reply(peer, refusal)
            self._refuse(peer, refusal.text)
            return
        aggregate = self._adopted(peer, description)
        # Or it would be sent updates of this turn, which it may have already.
        self._settle()
        begins = bool(join.checksums) and join.checksums != self.training.checksums
        if begins or worker in aggregate.absent:
            self.journal.keep(packed)
            self.training.enter(join, frames.unpack(memoryview(packed)))
        self.members.join(peer)
        self._listener.admit(peer.id)
        welcome = Welcome(self.training.version, self._rules.quorum, self._rules.staleness)
        self._outbox.reply(peer, welcome, step=aggregate.steps(worker))
        self._outbox.catch_up(peer, after=join.version)
        text = f"worker {worker} joined at version {join.version}"
        self._arrivals.note(text, now=time.monotonic())

    def _run_state(self, peer: Peer) -> RunState:
        # Before the first worker or push the training may begin with any weights.
        is_begun = self.training.has_pushes or bool(self.members.workers)
        return RunState(
            self._recipe,
            self._rules,
            self.training.model,
            self.training.checksums if is_begun else (),
            self.training.version,
            self.journal.since,
            frozenset(self.members.workers),
            self._listener.allows(peer.id, peer.session.worker),
        )

    def _adopted(self, peer: Peer, description: Describe | None) -> Aggregate:
        """The aggregate, made from what the first worker describes."""
        if self.training.aggregate is None and description is not None:
            self.training.adopt(description, frames.unpack(memoryview(peer.described)))
            self.journal.keep(peer.described)
        return self.training.running()

    def _publish(self, updates: Iterable[Update]) -> None:
        if self._outbox.publish(updates):
            self._timeouts.restart(now=time.monotonic())

    def _settle(self) -> None:
        """Commit and send all of this turn, then write a snapshot if it is time."""
        self._outbox.flush()
        if self.training.aggregate is not None:
            self.journal.keep_state(
                self.training.aggregate,
                self.training.handshake(),
                self.training.lost,
                every_nbytes=self._settings.snapshot_nbytes,
            )

    def _recover(self, recovery: Recovery) -> None:
        """Go on where the log ends; its workers are expected back.

        If all had left the owner decides: ``done`` ends it, else it goes on when all are back.
        """
        self.training.recover(recovery, self.journal)
        aggregate = self.training.aggregate
        if aggregate is not None:
            workers = {worker for worker, _ in aggregate.counted} - aggregate.absent
            self.members.away_since = dict.fromkeys(workers, time.monotonic())
            _logger.info("went back to version %d of run %d", aggregate.version, self.journal.run)

    def _leave(self, peer: Peer, leave: Leave, packed: bytes) -> None:
        worker = peer.session.worker
        self._outbox.reply(peer, Leave(leave.reason, "goodbye"))
        self._end(peer, leave.text or leave.reason.name.lower())
        if leave.reason is Reason.DONE:
            self._go_on_without(worker, leave.reason, packed)

    def _go_on_without(self, worker: int, reason: Reason, packed: bytes) -> None:
        """Wait no more for a worker that will not come back; without any, the training is done."""
        self.members.away_since.pop(worker, None)
        self.journal.keep(packed)
        self._publish(self.training.leave(worker, reason))
        self.done = self.training.is_over

    def _dismiss(self, peer: Peer, why: str, reason: Reason = Reason.PROTOCOL) -> None:
        peer.session.fail()
        if peer.session.state is not State.CLOSED:
            self._outbox.reply(peer, Leave(reason, shortened(why)))
        self._refuse(peer, why)

    def _refuse(self, peer: Peer, why: str) -> None:
        text = f"refused connection {peer.id}, worker {peer.session.worker}: {why}"
        self._refusals.note(text, now=time.monotonic())
        self._refused += 1
        self._end(peer, why)

    def _end(self, peer: Peer, why: str) -> None:
        now = time.monotonic()
        if self.members.end(peer, now=now):
            self._arrivals.note(f"worker {peer.session.worker} is away: {why}", now=now)

    def _check_unjoined(self) -> None:
        for peer in self._timeouts.unjoined(self.members, now=time.monotonic()):
            self._dismiss(peer, f"it has not joined within {JOIN_SECONDS:g} s, or is one of many")

    def _check_ended(self) -> None:
        now = time.monotonic()
        self._refusals.catch_up(now=now)
        self._arrivals.catch_up(now=now)
        for peer_id in self._timeouts.ended(self.members, now=now):
            self._listener.drop(peer_id)

    def _check_losses(self) -> None:
        for worker, seconds in self._timeouts.lost(self.members, now=time.monotonic()):
            report, aggregate = self._reports.get(worker), self.training.aggregate
            text = loss_text(worker, seconds, aggregate, report)
            if self._settings.on_loss == "stop":
                self._stop_all(text)
            _logger.warning("%s; going on without it", text)
            leave = self.journal.frame(Leave(Reason.LOST, shortened(text)), worker=worker)
            self._go_on_without(worker, Reason.LOST, leave)

    def _stop_all(self, text: str) -> None:
        for peer in self.members.ready():
            self._outbox.reply(peer, Leave(Reason.LOST, shortened(text)))
        self._settle()
        raise WorkerLost(text)

    def _check_late(self) -> None:
        """Log which workers a version waits for, and tell all."""
        waiting = self._timeouts.late(self.training.aggregate, now=time.monotonic())
        if waiting is not None:
            late, seconds = waiting
            version, workers = late.version, list(late.workers)
            _logger.warning("version %d waits for workers %s, %.0f s", version, workers, seconds)
            for peer in self.members.ready():
                self._outbox.reply(peer, late)
