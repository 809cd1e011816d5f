"""A parameter server: hears workers, keeps what they said, and answers. Glue between the parts.

One thread does everything here; the transport and the kernels have their own. It works in turns:
take what has come, make it last, then speak. Nobody is told of anything that a restart could
forget, and one commit serves all that came in the meantime.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

from thinwire.errors import RemoteProtocolError, WorkerLost
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.server.joining import check_first_words, why_not
from thinwire.server.log import Log
from thinwire.server.members import Members, Peer
from thinwire.server.memory import Memory, in_frames
from thinwire.server.recovery import Recovery
from thinwire.server.rules import Rules
from thinwire.server.settings import DEFAULT_SETTINGS, ServiceSettings
from thinwire.server.training import Training
from thinwire.transport.base import Listener, PeerGone, Received
from thinwire.transport.refusals import Refusals
from thinwire.wire import frame as frames
from thinwire.wire.body import shortened
from thinwire.wire.frame import Frame
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
)
from thinwire.wire.session import State

_logger = logging.getLogger(__name__)

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
MOST_STEP = (1 << 62) - 1
"""A worker that comes back is told the number of its next step, which must be a number, too."""


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
        self._settings = settings
        self.training = Training(recipe, rules, seed=seed)
        self.memory = Memory(log)
        self.members = Members(self.memory.run, self.memory.epoch)
        self.counters: Counter[str] = Counter()
        """How many pushes were accepted, refused and repeated, and the bytes of each way."""
        self.done = False
        self._owed: dict[int, tuple[int, float]] = {}
        self._refusals = Refusals(_logger)
        self._comings = Refusals(_logger, level=logging.INFO)
        self._updates: list[tuple[Update, bytes]] = []
        self._replies: list[tuple[Peer, Message, int]] = []
        self._opened = self._warned = time.monotonic()
        if recovery is not None:
            self._recover(recovery)

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
            check_first_words(peer.session, frame, self.training.described)
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
            model=self.training.model,
            checksums=self.training.checksums if self._is_begun() else (),
            version=self.training.version,
            since=self.memory.past.since,
            joined=worker in self.members.workers,
        )
        if refusal is not None:
            self._say(peer, refusal)
            self._refuse(peer, refusal.text)
            return
        aggregate = self._adopted(peer, description)
        # Or it would be sent updates of this turn, which it may have said that it has.
        self._settle()
        begins = bool(join.checksums) and join.checksums != self.training.checksums
        if begins or worker in aggregate.absent:
            self.memory.keep(raw)
            self.training.enter(join, frames.unpack(memoryview(raw)))
        self.members.join(peer)
        self._listener.admit(peer.id)
        welcome = Welcome(self.training.version, self._rules.quorum, self._rules.staleness)
        self._say(peer, welcome, step=aggregate.steps(worker))
        self._catch_up(peer, after=join.version)
        self._comings.note(
            f"worker {worker} joined at version {join.version}", now=time.monotonic()
        )

    def _is_begun(self) -> bool:
        """Whether anybody relies on the first weights. Else whoever comes may begin with others."""
        aggregate = self.training.aggregate
        pushed = aggregate is not None and aggregate.marks
        return bool(pushed or self.members.workers)

    def _adopted(self, peer: Peer, description: Describe | None) -> Aggregate:
        """The aggregate, made from what the first worker describes."""
        if self.training.aggregate is None:
            if description is None:
                raise RemoteProtocolError("not described what is trained")
            self.training.adopt(description, frames.unpack(memoryview(peer.described)))
            self.memory.keep(peer.described)
        return self.training.running()

    def _push(self, peer: Peer, step: int, push: Push, raw: bytes) -> None:
        aggregate, worker = self.training.running(), peer.session.worker
        if step > MOST_STEP:
            raise RemoteProtocolError(f"push of worker {worker}: step {step}, beyond {MOST_STEP}")
        verdict = aggregate.judge(worker, step, push)
        if verdict.accepted:
            self.memory.keep(raw)
            if not any(aggregate.open.values()):  # from now on somebody waits
                self._opened = self._warned = time.monotonic()
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
            self._say(
                peer, Refusal(self.training.version, Reason.STALE, text, verdict.stale), step=step
            )
        counted = tuple(sorted((*verdict.accepted, *verdict.repeated)))
        self._say(peer, Counted(self.training.version, counted), step=step)

    def _publish(self, updates: Iterable[Update]) -> None:
        for part in in_frames(updates):
            self._updates.append((part, self.memory.keep_update(part)))
            self._opened = self._warned = time.monotonic()

    def _catch_up(self, peer: Peer, *, after: int) -> None:
        """Send old updates, so many that a peer that reads at all can take them."""
        version = after
        for update in self.memory.history(after=after, most_nbytes=_CATCH_UP_NBYTES):
            version = update.version
            self._say(peer, update)
        self._say(peer, CaughtUp(version))

    def _settle(self) -> None:
        """Make it last, then say it; first layers first, because the next forward needs them."""
        self.memory.commit()
        for peer in list(self.members.ready()):
            if peer.wanted is not None:
                self._catch_up(peer, after=peer.wanted)
                peer.wanted = None
        updates = sorted(self._updates, key=lambda one: (one[0].version, one[0].entries[0].piece))
        replies, self._updates, self._replies = self._replies, [], []
        for peer, message, step in replies:
            self._send(peer, self.memory.frame(message, step=step))
        for update, frame in updates:
            for peer in self.members.ready():
                peer.session.send(update)
                self._send(peer, frame)
        if self.training.aggregate is not None:
            every = self._settings.snapshot_nbytes
            said = self.training.said()
            self.memory.keep_state(self.training.aggregate, said, every_nbytes=every)

    def _recover(self, recovery: Recovery) -> None:
        """Go on where the log ends. Who was there is expected back."""
        self.training.recover(recovery, self.memory)
        aggregate = self.training.aggregate
        if aggregate is not None:
            workers = {worker for worker, _ in aggregate.marks} - aggregate.absent
            self.members.away_since = dict.fromkeys(workers, time.monotonic())
            _logger.info("went back to version %d of run %d", aggregate.version, self.memory.run)

    def _leave(self, peer: Peer, leave: Leave, raw: bytes) -> None:
        worker = peer.session.worker
        self._say(peer, Leave(leave.reason, "goodbye"))
        self._end(peer, leave.text or leave.reason.name.lower())
        if leave.reason is Reason.DONE:
            self._without(worker, leave.reason, raw)

    def _without(self, worker: int, reason: Reason, raw: bytes) -> None:
        """Go on without a worker that will not come back; without any, this is the end."""
        self.members.away_since.pop(worker, None)
        self.memory.keep(raw)
        self._publish(self.training.leave(worker, reason))
        self.done = len(self.training.running().absent) == self._rules.workers

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
                text += self._others_awaited(worker)
                if self._settings.on_loss == "stop":
                    self._stop_all(text)
                _logger.warning("%s; going on without it", text)
                said = self.memory.frame(Leave(Reason.LOST, shortened(text)), worker=worker)
                self._without(worker, Reason.LOST, said)

    def _debt(self, worker: int) -> str:
        at = f"at version {self.training.version}"
        if worker not in self._owed:
            return f"{at}; what it owed is not known"
        step, owed = self._owed[worker]
        return f"{at}; it owed a residual of norm {owed:.6g} after step {step}"

    def _others_awaited(self, worker: int) -> str:
        """Who else is missing: a worker may have left because another never came."""
        aggregate = self.training.aggregate
        for version, late in ({} if aggregate is None else aggregate.late()).items():
            others = [one for one in late if one != worker]
            if others:
                return f"; version {version} waits for workers {others}"
        return ""

    def _stop_all(self, text: str) -> None:
        for peer in self.members.ready():
            self._say(peer, Leave(Reason.LOST, shortened(text)))
        self._settle()
        raise WorkerLost(text)

    def _check_late(self) -> None:
        """Name who is waited for, every so often."""
        now = time.monotonic()
        aggregate = self.training.aggregate
        if aggregate is None or now - self._warned < self._settings.late_seconds:
            return
        self._warned = now
        for version, workers in list(aggregate.late().items())[:1]:
            seconds = now - self._opened
            _logger.warning("version %d waits for workers %s, %.0f s", version, workers, seconds)
            for peer in self.members.ready():
                self._say(peer, Late(version, tuple(workers)))

    def _say(self, peer: Peer, message: Message, *, step: int = 0) -> None:
        """At the end of this turn."""
        peer.session.send(message, step=step)
        self._replies.append((peer, message, step))

    def _send(self, peer: Peer, frame: bytes) -> None:
        self.counters["sent_nbytes"] += len(frame)
        self._listener.send(peer.id, frame)
