"""A parameter server: hears workers, keeps what they said, and answers. Glue between the parts.

One thread does everything here; the transport and the kernels have their own. It works in turns:
take what has come, make it last, then speak. Nobody is told of anything that a restart could
forget, and one commit serves all that came in the meantime.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from thinwire.errors import RemoteProtocolError, WorkerLost
from thinwire.model import Model
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.server.joining import check_first_words, why_not
from thinwire.server.log import Log
from thinwire.server.members import Members, Peer
from thinwire.server.past import Past, ShortPast
from thinwire.server.recovery import Recovery
from thinwire.server.rules import Rules
from thinwire.server.state import restore, snapshot_of
from thinwire.settings import check_choice, check_positive, check_whole
from thinwire.transport.base import Listener, PeerGone, Received
from thinwire.transport.refusals import Refusals
from thinwire.wire import frame as frames
from thinwire.wire.body import shortened
from thinwire.wire.frame import DEFAULT_LIMITS, Frame
from thinwire.wire.messages import (
    CatchUp,
    CaughtUp,
    Counted,
    Describe,
    Join,
    Late,
    Leave,
    Message,
    Push,
    Reason,
    Refusal,
    Report,
    Update,
    Welcome,
    decode,
    encode,
)
from thinwire.wire.session import State

_logger = logging.getLogger(__name__)

ON_LOSS = ("stop", "continue")

_OTHER_RUN = "this is another run than yours: was this server started without its log?"
_EVENTS_PER_TURN = 256
_CATCH_UP_NBYTES = 8 << 20
_GOODBYE_SECONDS = 5.0
"""How long a connection may stay after its last word was sent."""
_MOST_GOODBYES = 64
"""So many of them: the places at this server are for others."""
_MOST_IGNORED = 64
"""Frames of a peer that was told goodbye. What is not read until it is cut off takes memory."""
_JOIN_SECONDS = 20.0
"""From the first word to Join. A worker says both at once, but it may be frozen in between."""
_MOST_STRANGERS = 64
"""Who have said something and not joined, beyond the number of workers."""
_UPDATE_NBYTES, _ENTRY_NBYTES = 12, 14
"""Of a body: the version and a count, and the row of each entry."""
MOST_STEP = (1 << 62) - 1
"""A worker that comes back is told the number of its next step, which must be a number, too."""


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


class Service:
    """Serves workers until the training is done or one of them is lost.

    With a log, a server that is started again goes on where it was, bit for bit.
    """

    def __init__(
        self,
        listener: Listener,
        recipe: Recipe,
        rules: Rules,
        *,
        settings: ServiceSettings = DEFAULT_SETTINGS,
        log: Log | None = None,
        recovery: Recovery | None = None,
        seed: int = 0,
    ) -> None:
        """``recovery`` is what ``log`` held when it was opened."""
        self._listener, self._recipe, self._rules = listener, recipe, rules
        self._settings, self._seed = settings, seed
        self._log = log
        self.past: Past = ShortPast() if log is None else log
        run = int.from_bytes(os.urandom(7), "little") + 1 if log is None else log.run
        self.members = Members(run, 1 if log is None else log.epoch)
        self.model: Model | None = None
        self.aggregate: Aggregate | None = None
        self.counters: Counter[str] = Counter()
        """How many pushes were accepted, refused and repeated, and the bytes of each way."""
        self.done = False
        self._described: Frame | None = None
        self._owed: dict[int, tuple[int, float]] = {}
        self._refusals = Refusals(_logger)
        self._comings = Refusals(_logger, level=logging.INFO)
        self._updates: list[tuple[Update, bytes]] = []
        self._replies: list[tuple[Peer, Message, int]] = []
        self._opened = self._warned = time.monotonic()
        self._kept_nbytes = 0
        """Since the last snapshot."""
        if recovery is not None:
            self._recover(recovery)

    @property
    def version(self) -> int:
        """The newest one that all pieces have reached."""
        return 0 if self.aggregate is None else self.aggregate.version

    def serve(self, *, stop: Callable[[], bool] = lambda: False, tick_seconds: float = 0.2) -> None:
        """Serve until all workers have left, or ``stop`` says so. Raises WorkerLost."""
        while not self.done and not stop():
            self._turn(tick_seconds)

    def _turn(self, tick_seconds: float) -> None:
        wait = tick_seconds
        for _ in range(_EVENTS_PER_TURN):
            event = self._listener.receive(deadline_seconds=wait)
            if event is None:
                break
            self._take(event)
            wait = 0.0
        self._check_losses()
        self._check_strangers()
        self._settle()
        self._check_late()
        self._check_ended()

    def _take(self, event: Received | PeerGone) -> None:
        """One event. What is wrong with a frame ends that peer's session, nothing else."""
        if isinstance(event, PeerGone):
            peer = self.members.gone(event.peer)
            if peer is not None:
                self._end(peer, event.reason)
            return
        peer = self.members.find(event.peer, now=time.monotonic())
        if peer is None:
            return
        self.counters["received_nbytes"] += len(event.frame)
        try:
            frame = frames.unpack(event.frame)
            if frame.run not in (0, self.members.run):
                self._dismiss(peer, _OTHER_RUN, Reason.EPOCH)
                return
            check_first_words(peer.session, frame, self._described)
            message = peer.session.receive(frame)
            self._act(peer, frame, message, bytes(event.frame))
        except RemoteProtocolError as error:
            self._dismiss(peer, str(error))

    def _act(self, peer: Peer, frame: Frame, message: Message, raw: bytes) -> None:
        if isinstance(message, Describe):
            peer.described = raw
        elif isinstance(message, Join):
            self._join(peer, message, raw)
        elif isinstance(message, Push):
            self._push(peer, frame.step, message, raw)
        elif isinstance(message, CatchUp):
            peer.wanted = message.version  # once in a turn, however often it asks
        elif isinstance(message, Report):
            self._owed[peer.session.worker] = (frame.step, message.owed)
        elif isinstance(message, Leave):
            self._leave(peer, message, raw)

    def _join(self, peer: Peer, join: Join, raw: bytes) -> None:
        worker, description = peer.session.worker, peer.description
        refusal = why_not(
            worker,
            join,
            description,
            recipe=self._recipe,
            rules=self._rules,
            model=self.model,
            version=self.version,
            since=self.past.since,
            joined=worker in self.members.workers,
        )
        if refusal is not None:
            self._say(peer, refusal)
            self._refuse(peer, refusal.text)
            return
        aggregate = self._adopted(peer, description)
        # Or it would be sent updates of this turn, which it may have said that it has.
        self._settle()
        if worker in aggregate.absent:
            self._keep(raw)
            aggregate.enter(worker)
        self.members.join(peer)
        welcome = Welcome(self.version, self._rules.quorum, self._rules.staleness)
        self._say(peer, welcome, step=aggregate.steps(worker))
        self._catch_up(peer, after=join.version)
        self._comings.note(
            f"worker {worker} joined at version {join.version}", now=time.monotonic()
        )

    def _adopted(self, peer: Peer, description: Describe | None) -> Aggregate:
        """The aggregate, made from what the first worker describes."""
        if self.aggregate is None:
            if description is None:
                raise RemoteProtocolError("not described what is trained")
            self._adopt(description, frames.unpack(memoryview(peer.described)))
            self._keep(peer.described)
        return self._running()

    def _running(self) -> Aggregate:
        if self.aggregate is None:
            raise RemoteProtocolError("nobody has described what is trained")
        return self.aggregate

    def _adopt(self, description: Describe, described: Frame) -> None:
        self.model, self._described = Model(description, self._rules.workers), described
        pieces = self.model.own()
        self.aggregate = Aggregate(self._recipe, pieces, self._rules, seed=self._seed)
        state_nbytes = 4 * sum(piece.numel for piece in pieces.values())
        self._snapshot_nbytes = max(4 * state_nbytes, self._settings.snapshot_nbytes)

    def _push(self, peer: Peer, step: int, push: Push, raw: bytes) -> None:
        aggregate, worker = self._running(), peer.session.worker
        if step > MOST_STEP:
            raise RemoteProtocolError(f"push of worker {worker}: step {step}, beyond {MOST_STEP}")
        verdict = aggregate.judge(worker, step, push)
        if verdict.accepted:
            self._keep(raw)
        spoilt = aggregate.spoilt
        self._publish(aggregate.count(worker, step, push, verdict))
        if aggregate.spoilt > spoilt:
            text = f"a version with a push of worker {worker} is not finite, and is thrown away"
            self._refusals.note(text, now=time.monotonic())
        for name in ("accepted", "stale", "repeated"):
            self.counters[name] += len(getattr(verdict, name))
        if verdict.stale:
            behind = aggregate.version - push.version
            text = f"{behind} versions behind, {self._rules.staleness} allowed, once on each"
            self._say(peer, Refusal(self.version, Reason.STALE, text, verdict.stale), step=step)
        counted = tuple(sorted((*verdict.accepted, *verdict.repeated)))
        self._say(peer, Counted(self.version, counted), step=step)

    def _publish(self, updates: Iterable[Update]) -> None:
        for part in _parts(updates):
            frame = b"".join(frames.pack(self._encode(part)))
            self._updates.append((part, frame))
            self.past.append([frame])
            self._kept_nbytes += len(frame)
            self._opened = self._warned = time.monotonic()

    def _catch_up(self, peer: Peer, *, after: int) -> None:
        """Send old updates, so many that a peer that reads at all can take them."""
        self.past.commit()
        nbytes, version = 0, after
        for frame in self.past.updates(after=max(after, self.past.since)):
            update = decode(frame)
            if not isinstance(update, Update):
                continue
            if update.version != version and nbytes > _CATCH_UP_NBYTES:
                break
            version, nbytes = update.version, nbytes + len(frame.body)
            self._say(peer, update)
        self._say(peer, CaughtUp(version))

    def _settle(self) -> None:
        """Make it last, then say it; first layers first, because the next forward needs them."""
        self.past.commit()
        for peer in list(self.members.ready()):
            if peer.wanted is not None:
                self._catch_up(peer, after=peer.wanted)
                peer.wanted = None
        updates = sorted(self._updates, key=lambda one: (one[0].version, one[0].entries[0].piece))
        replies, self._updates, self._replies = self._replies, [], []
        for peer, message, step in replies:
            self._send(peer, b"".join(frames.pack(self._encode(message, step=step))))
        for update, frame in updates:
            for peer in self.members.ready():
                peer.session.send(update)
                self._send(peer, frame)
        self._keep_snapshot()

    def _keep_snapshot(self) -> None:
        log, aggregate, described = self._log, self.aggregate, self._described
        if log is None or aggregate is None or described is None:
            return
        if self._kept_nbytes >= self._snapshot_nbytes:
            run, epoch = self.members.run, self.members.epoch
            log.snapshot(snapshot_of(aggregate, described, run=run, epoch=epoch))
            self._kept_nbytes = 0

    def _recover(self, recovery: Recovery) -> None:
        """Count again what was logged before a restart.

        Updates follow from pushes. One that was made but not logged any more is logged now.
        """
        if recovery.snapshot is not None:
            described = recovery.snapshot.pending[0]
            self._again(described)
            restore(self._running(), recovery.snapshot)
        missing: dict[tuple[int, ...], Update] = {}
        for frame in recovery.frames():
            self._kept_nbytes += len(frame.body)
            message = decode(frame)
            if isinstance(message, Update):
                missing.pop(_name(message), None)
            else:
                missing |= {_name(part): part for part in _parts(self._again(frame))}
        for update in missing.values():
            self.past.append(frames.pack(self._encode(update)))
        self.past.commit()
        if self.aggregate is not None:
            workers = {worker for worker, _ in self.aggregate.marks} - self.aggregate.absent
            self.members.away_since = dict.fromkeys(workers, time.monotonic())
            _logger.info("went back to version %d of run %d", self.version, self.members.run)

    def _again(self, frame: Frame) -> list[Update]:
        """What a logged frame did when it came."""
        message = decode(frame)
        if isinstance(message, Describe):
            self._adopt(message, frame)
        elif isinstance(message, Push):
            return self._running().count(frame.worker, frame.step, message)
        elif isinstance(message, Leave):
            return self._running().leave(frame.worker)
        elif isinstance(message, Join):
            self._running().enter(frame.worker)
        return []

    def _leave(self, peer: Peer, leave: Leave, raw: bytes) -> None:
        worker = peer.session.worker
        self._say(peer, Leave(leave.reason, "goodbye"))
        self._end(peer, leave.text or leave.reason.name.lower())
        if leave.reason is Reason.DONE:
            self._without(worker, raw)
            everyone = set(range(self._rules.workers))
            self.done = everyone <= self._running().absent

    def _without(self, worker: int, raw: bytes) -> None:
        """Go on without a worker that will not come back."""
        self.members.away_since.pop(worker, None)
        self._keep(raw)
        self._publish(self._running().leave(worker))

    def _dismiss(self, peer: Peer, why: str, reason: Reason = Reason.PROTOCOL) -> None:
        peer.session.fail()
        if peer.session.state is not State.CLOSED:
            self._say(peer, Leave(reason, shortened(why)))
        self._refuse(peer, why)

    def _refuse(self, peer: Peer, why: str) -> None:
        text = f"refused connection {peer.id}, worker {peer.session.worker}: {why}"
        self._refusals.note(text, now=time.monotonic())
        self.counters["refused"] += 1
        self._end(peer, why)

    def _end(self, peer: Peer, why: str) -> None:
        now = time.monotonic()
        if self.members.end(peer, now=now):
            self._comings.note(f"worker {peer.session.worker} is away: {why}", now=now)

    def _check_strangers(self) -> None:
        """Who has only said something takes a place that a worker may need."""
        now = time.monotonic()
        most = self._rules.workers + _MOST_STRANGERS
        for peer in self.members.strangers(before=now - _JOIN_SECONDS, most=most):
            self._dismiss(peer, f"it has not joined within {_JOIN_SECONDS:g} s, or is one of many")

    def _check_ended(self) -> None:
        now = time.monotonic()
        self._refusals.catch_up(now=now)
        self._comings.catch_up(now=now)
        for peer_id in self.members.overdue(
            before=now - _GOODBYE_SECONDS, most=_MOST_GOODBYES, most_frames=_MOST_IGNORED
        ):
            self._listener.drop(peer_id)

    def _check_losses(self) -> None:
        for worker, since in list(self.members.away_since.items()):
            away = time.monotonic() - since
            if away > self._settings.loss_seconds:
                text = f"worker {worker} is lost: away for {away:.0f} s, {self._debt(worker)}"
                if self._settings.on_loss == "stop":
                    self._stop_all(text)
                _logger.warning("%s; going on without it", text)
                run, epoch = self.members.run, self.members.epoch
                leave = Leave(Reason.LOST, text)
                frame = encode(leave, run=run, epoch=epoch, worker=worker, step=0)
                self._without(worker, b"".join(frames.pack(frame)))

    def _debt(self, worker: int) -> str:
        if worker not in self._owed:
            return f"at version {self.version}; what it owed is not known"
        step, owed = self._owed[worker]
        return f"at version {self.version}; it owed a residual of norm {owed:.6g} after step {step}"

    def _stop_all(self, text: str) -> None:
        for peer in self.members.ready():
            self._say(peer, Leave(Reason.LOST, shortened(text)))
        self._settle()
        raise WorkerLost(text)

    def _check_late(self) -> None:
        """Name who is waited for, every so often."""
        now = time.monotonic()
        if self.aggregate is None or now - self._warned < self._settings.late_seconds:
            return
        self._warned = now
        for version, workers in list(self.aggregate.late().items())[:1]:
            seconds = now - self._opened
            _logger.warning("version %d waits for workers %s, %.0f s", version, workers, seconds)
            for peer in self.members.ready():
                self._say(peer, Late(version, tuple(workers)))

    def _say(self, peer: Peer, message: Message, *, step: int = 0) -> None:
        """At the end of this turn."""
        peer.session.send(message, step=step)
        self._replies.append((peer, message, step))

    def _encode(self, message: Message, *, step: int = 0) -> Frame:
        run, epoch = self.members.run, self.members.epoch
        return encode(message, run=run, epoch=epoch, worker=frames.SERVER, step=step)

    def _send(self, peer: Peer, frame: bytes) -> None:
        self.counters["sent_nbytes"] += len(frame)
        self._listener.send(peer.id, frame)

    def _keep(self, frame: bytes) -> None:
        """What a restart needs, with the next commit."""
        if self._log is not None:
            self._log.append([frame])
            self._kept_nbytes += len(frame)


def _parts(updates: Iterable[Update]) -> Iterator[Update]:
    """The same updates, in so many that each fits into a frame."""
    most, most_nbytes = DEFAULT_LIMITS.max_entries, DEFAULT_LIMITS.max_body_nbytes
    for update in updates:
        first, nbytes = 0, _UPDATE_NBYTES
        for i, entry in enumerate(update.entries):
            nbytes += _ENTRY_NBYTES + len(entry.payload)
            if nbytes > most_nbytes or i - first == most:
                yield Update(update.version, update.entries[first:i])
                first, nbytes = i, _UPDATE_NBYTES + _ENTRY_NBYTES + len(entry.payload)
        yield Update(update.version, update.entries[first:])


def _name(update: Update) -> tuple[int, ...]:
    """The version and the pieces of an update: no other has the same."""
    return (update.version, *(entry.piece for entry in update.entries))
