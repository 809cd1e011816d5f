"""A parameter server: hears workers, keeps what they said, and answers. Glue between the parts.

One thread does everything here; the transport and the kernels have their own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from thinwire.errors import RemoteProtocolError, WorkerLost
from thinwire.model import Model
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.server.log import Log
from thinwire.server.recovery import Recovery
from thinwire.server.rules import Rules
from thinwire.transport.base import Listener, PeerGone, PeerId, Received
from thinwire.wire import frame as frames
from thinwire.wire.frame import Frame
from thinwire.wire.messages import (
    CatchUp,
    Describe,
    Heartbeat,
    Join,
    Leave,
    Message,
    Push,
    Reason,
    Refusal,
    Update,
    Welcome,
    decode,
)
from thinwire.wire.session import Session, State

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Peer:
    """One connection: its session, and what it said before it joined."""

    session: Session
    description: Describe | None = None
    described: bytes = b""


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
        log: Log | None = None,
        recovery: Recovery | None = None,
        loss_seconds: float = 60.0,
        seed: int = 0,
    ) -> None:
        """``recovery`` is what ``log`` held when it was opened."""
        self._listener, self._recipe, self._rules = listener, recipe, rules
        self._log, self._seed = log, seed
        self._loss_seconds = loss_seconds
        self.run = int.from_bytes(os.urandom(7), "little") + 1 if log is None else log.run
        self.epoch = 1 if log is None else log.epoch
        self.model: Model | None = None
        self.aggregate: Aggregate | None = None
        self._peers: dict[PeerId, Peer] = {}
        self._workers: dict[int, PeerId] = {}
        self._gone_since: dict[int, float] = {}
        self._updates: list[Update] = []
        self.done = False
        self._restore(() if recovery is None else recovery.frames())

    def serve(self, *, stop: Callable[[], bool] = lambda: False, tick_seconds: float = 0.2) -> None:
        """Serve until all workers have left, or ``stop`` says so. Raises WorkerLost."""
        while not self.done and not stop():
            event = self._listener.receive(deadline_seconds=tick_seconds)
            if isinstance(event, Received):
                self.hear(event)
            elif isinstance(event, PeerGone):
                self._forget(event.peer, event.reason)
            self._check_losses()

    def hear(self, event: Received) -> None:
        """One frame of one peer. What is wrong with it ends that peer's session, nothing else."""
        peer = self._peers.get(event.peer)
        if peer is None:
            peer = self._peers[event.peer] = Peer(Session.of_server(self.run, self.epoch))
        try:
            frame = frames.unpack(event.frame)
            message = peer.session.receive(frame)
            self._act(event.peer, peer, frame, message, bytes(event.frame))
        except RemoteProtocolError as error:
            self._dismiss(event.peer, peer, str(error))

    def _act(self, peer_id: PeerId, peer: Peer, frame: Frame, message: Message, raw: bytes) -> None:
        if isinstance(message, Describe):
            peer.description, peer.described = message, raw
        elif isinstance(message, Join):
            self._join(peer_id, peer, message)
        elif isinstance(message, Push):
            self._push(peer_id, peer, frame.step, message, raw)
        elif isinstance(message, CatchUp):
            self._catch_up(peer_id, peer, after=message.version)
        elif isinstance(message, Leave):
            self._leave(peer_id, peer, message)

    def _join(self, peer_id: PeerId, peer: Peer, join: Join) -> None:
        refusal = self._why_not(peer, join)
        if refusal is not None:
            self._say(peer_id, peer, refusal)
            self._forget(peer_id, refusal.text)
            return
        aggregate = self._adopted(peer)
        self._workers[peer.session.worker] = peer_id
        self._gone_since.pop(peer.session.worker, None)
        rules = aggregate.rules
        self._say(peer_id, peer, Welcome(aggregate.version, rules.quorum, rules.staleness))
        self._catch_up(peer_id, peer, after=join.version)
        _logger.info("worker %d joined at version %d", peer.session.worker, join.version)

    def _why_not(self, peer: Peer, join: Join) -> Refusal | None:
        version = 0 if self.aggregate is None else self.aggregate.version
        worker, workers = peer.session.worker, self._rules.workers
        if join.workers != workers:
            text = f"this server has {workers} workers, you say {join.workers}"
            return Refusal(version, Reason.DIGEST, text)
        if worker >= workers:
            text = f"worker {worker}: there are only workers 0 to {workers - 1}"
            return Refusal(version, Reason.UNKNOWN_WORKER, text)
        if worker in self._workers:
            text = f"worker {worker} has joined already: does another process have the same rank?"
            return Refusal(version, Reason.UNKNOWN_WORKER, text)
        if peer.description is None:
            return Refusal(version, Reason.DIGEST, "say what you train before you join")
        model = self.model or Model(peer.description, workers)
        if peer.description.recipe != repr(self._recipe):
            text = f"the recipe here is {self._recipe!r}, yours is {peer.description.recipe}"
            return Refusal(version, Reason.DIGEST, text[:1000])
        difference = model.difference(peer.description)
        if difference is not None or join.digest != model.digest:
            return Refusal(version, Reason.DIGEST, (difference or "digests differ")[:1000])
        if join.version > version:
            text = f"you are at version {join.version}, this server only at {version}"
            return Refusal(version, Reason.HISTORY, text)
        return None

    def _adopted(self, peer: Peer) -> Aggregate:
        """The aggregate, made from what the first worker describes."""
        if self.aggregate is None and peer.description is not None:
            self._adopt(peer.description)
            if self._log is not None:
                self._log.append([peer.described])
                self._log.commit()
        if self.aggregate is None:
            raise RemoteProtocolError("join without a description")
        return self.aggregate

    def _adopt(self, description: Describe) -> None:
        self.model = Model(description, self._rules.workers)
        self.aggregate = Aggregate(self._recipe, self.model.own(), self._rules, seed=self._seed)

    def _push(self, peer_id: PeerId, peer: Peer, step: int, push: Push, raw: bytes) -> None:
        aggregate, worker = self._adopted(peer), peer.session.worker
        verdict = aggregate.judge(worker, step, push)
        if verdict.accepted and self._log is not None:
            self._log.append([raw])
            self._log.commit()  # only now does it count
        updates = aggregate.count(worker, step, push)
        if verdict.stale:
            behind = aggregate.version - push.version
            text = f"{behind} versions behind, {aggregate.rules.staleness} allowed"
            refusal = Refusal(aggregate.version, Reason.STALE, text, verdict.stale)
            self._say(peer_id, peer, refusal, step=step)
        self._say(peer_id, peer, Heartbeat(aggregate.version), step=step)
        for update in updates:
            self._publish(update)

    def _publish(self, update: Update) -> None:
        self._remember(update)
        for peer_id in self._workers.values():
            self._say(peer_id, self._peers[peer_id], update)

    def _remember(self, update: Update) -> None:
        if self._log is None:
            self._updates.append(update)
            return
        session = Session.of_server(self.run, self.epoch)
        self._log.append(frames.pack(session.encode(update)))
        self._log.commit()

    def _catch_up(self, peer_id: PeerId, peer: Peer, *, after: int) -> None:
        for update in self._history(after):
            self._say(peer_id, peer, update)

    def _history(self, after: int) -> Iterator[Update]:
        if self._log is None:
            yield from (update for update in self._updates if update.version > after)
            return
        for frame in self._log.updates(after=after):
            message = decode(frame)
            if isinstance(message, Update):
                yield message

    def _restore(self, logged: Iterable[Frame]) -> None:
        """Count again what was logged before a restart.

        Updates follow from pushes. One that was made but not logged any more is logged now.
        """
        missing: dict[tuple[int, ...], Update] = {}
        for frame in logged:
            message = decode(frame)
            if isinstance(message, Describe):
                self._adopt(message)
            elif isinstance(message, Push) and self.aggregate is not None:
                for update in self.aggregate.count(frame.worker, frame.step, message):
                    missing[_name(update)] = update
            elif isinstance(message, Update):
                missing.pop(_name(message), None)
        for update in missing.values():
            self._remember(update)

    def _leave(self, peer_id: PeerId, peer: Peer, leave: Leave) -> None:
        self._say(peer_id, peer, Leave(leave.reason, "goodbye"))
        worker = peer.session.worker
        self._forget(peer_id, leave.text or leave.reason.name)
        self._gone_since.pop(worker, None)
        if leave.reason is Reason.DONE and not self._workers:
            self.done = True

    def _dismiss(self, peer_id: PeerId, peer: Peer, why: str) -> None:
        _logger.warning("worker %d is dismissed: %s", peer.session.worker, why)
        if peer.session.state is not State.CLOSED:
            self._say(peer_id, peer, Leave(Reason.PROTOCOL, why[:500]))
        self._forget(peer_id, why)

    def _forget(self, peer_id: PeerId, why: str) -> None:
        peer = self._peers.pop(peer_id, None)
        if peer is not None and self._workers.get(peer.session.worker) == peer_id:
            del self._workers[peer.session.worker]
            self._gone_since[peer.session.worker] = time.monotonic()
            _logger.info("worker %d is away: %s", peer.session.worker, why)

    def _check_losses(self) -> None:
        for worker, since in self._gone_since.items():
            away = time.monotonic() - since
            if away > self._loss_seconds:
                version = 0 if self.aggregate is None else self.aggregate.version
                text = f"worker {worker} is gone since {away:.0f} s, at version {version}"
                for peer_id, peer in list(self._peers.items()):
                    if peer.session.state is State.READY:
                        self._say(peer_id, peer, Leave(Reason.LOST, text))
                raise WorkerLost(text)

    def _say(self, peer_id: PeerId, peer: Peer, message: Message, *, step: int = 0) -> None:
        peer.session.send(message, step=step)
        self._listener.send(peer_id, frames.pack(peer.session.encode(message, step=step)))


def _name(update: Update) -> tuple[int, ...]:
    """The version and the pieces of an update: no other has the same."""
    return (update.version, *(entry.piece for entry in update.entries))
