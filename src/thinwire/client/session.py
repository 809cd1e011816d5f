"""``ServerSession``: one server, as a worker sees it, across broken connections.

A thread receives. Pushes are kept until the server acknowledges them, and are sent again after a
break. That is idempotent, because a server knows a push by its worker, step and piece: so each
counts exactly once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol

from thinwire.client.join import Joined, Joiner, JoinRequest
from thinwire.client.unacked import Unacked
from thinwire.errors import (
    Refused,
    RemoteProtocolError,
    TransportClosed,
    TransportTimeout,
    WorkerLost,
)
from thinwire.transport.base import Connection
from thinwire.wire import frame as frames
from thinwire.wire.body import Entry, shortened
from thinwire.wire.messages import (
    CatchUp,
    CaughtUp,
    Counted,
    Late,
    Leave,
    Message,
    Push,
    Reason,
    Refusal,
    Report,
    Update,
)
from thinwire.wire.session import State

_logger = logging.getLogger(__name__)

_LEAVE_SECONDS = 2.0
_MOST_LEAVE_SECONDS = 30.0
_MOST_BREAKS = 20
_MOST_IDLE_SECONDS = 5.0
"""After this a server is probed: it must show that it is alive."""


class Inbox(Protocol):
    """Takes what the server sends. Called by the session's thread."""

    def add(self, update: Update) -> None: ...

    def refused(self, entries: Collection[Entry]) -> None:
        """The server has not counted these."""

    def late(self, late: Late) -> None: ...

    def failed(self, error: BaseException) -> None: ...

    def applied(self) -> int:
        """The last version that this worker has applied to all pieces."""

    def received(self) -> int:
        """The last version up to which everything has come."""


class ServerSession:
    """Pushes to one server. ``connect`` makes a new connection, within so many seconds."""

    def __init__(
        self,
        connect: Callable[[float], Connection],
        request: JoinRequest,
        inbox: Inbox,
        *,
        deadline_seconds: float,
    ) -> None:
        self._inbox = inbox
        self._deadline = deadline_seconds
        self._idle = min(deadline_seconds / 8, _MOST_IDLE_SECONDS)
        self._received_at, self._probed = time.monotonic(), False
        self._unacked = Unacked()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closing = False
        self._leaving: Leave | None = None
        self._failure: BaseException | None = None
        self._breaks = 0
        """Since the server's last sign of progress."""
        self._probe_step: int | None = None
        """A step that was not acknowledged when the server was probed."""
        self._reported = time.monotonic()
        self.sent_nbytes = self.received_nbytes = 0
        self.rejoined = 0
        """How often the connection was made again."""
        self.version = 0
        """The server's newest one, as far as it is known."""
        self._joiner = Joiner(connect, request, inbox.applied, deadline_seconds=deadline_seconds)
        joined = self._joiner.join(again=False)
        self.counted = joined.counted
        """How many steps of this worker the server had counted when it joined first."""
        self._use(joined)
        threading.Thread(
            target=self._listen, name=f"thinwire server {self.address}", daemon=True
        ).start()

    @property
    def address(self) -> str:
        return self._connection.address

    @property
    def run(self) -> int:
        """The server's."""
        return self._joiner.run

    def push(self, step: int, push: Push) -> None:
        """Send a push, now or after the connection is there again."""
        with self._lock:
            self._unacked.add(step, push)
            self._try_to_send(push, step)

    def report(self, owed: Callable[[], float], step: int, *, every_seconds: float) -> None:
        """Tell the server what this worker owes, if that is due."""
        if time.monotonic() - self._reported >= every_seconds:
            self._reported = time.monotonic()
            report = Report(owed())
            with self._lock:
                self._try_to_send(report, step)

    def flush(self) -> None:
        """Wait until the server has acknowledged every push."""
        with self._changed:
            acked = self._changed.wait_for(
                lambda: not self._unacked or self._failure is not None, self._deadline
            )
            if self._failure is not None:
                raise self._failure
            if not acked:
                steps = self._unacked.steps()
                raise TransportTimeout(
                    f"{self.address} did not acknowledge the pushes of steps {steps} within "
                    f"{self._deadline:g} s"
                )

    def close(self, reason: Reason = Reason.DONE, text: str = "") -> None:
        """Leave, and wait for the answer: for a while, if others would wait for this worker.

        After a break the Leave is sent again, like every push that is not acknowledged.
        """
        with self._changed:
            self._leaving = Leave(reason, shortened(text))
            self._try_to_send(self._leaving, 0)
            seconds = self._deadline if reason is Reason.DONE else _LEAVE_SECONDS
            ended = self._changed.wait_for(
                lambda: self._session.state is State.CLOSED or self._failure is not None,
                min(seconds, _MOST_LEAVE_SECONDS),
            )
            self._closing = True
            self._joiner.stop()
        if not ended and reason is Reason.DONE:
            _logger.warning("%s did not acknowledge that this worker is done", self.address)
        self._connection.close()

    def _use(self, joined: Joined) -> None:
        self._session, self._connection = joined.session, joined.connection
        self._asked = joined.version
        self.rules = (joined.welcome.quorum, joined.welcome.staleness)
        self.version = max(self.version, joined.welcome.version)

    def _listen(self) -> None:
        try:
            while self._session.state not in (State.CLOSED, State.LEFT):
                try:
                    data = self._connection.receive(
                        deadline_seconds=self._idle / 4, what="an update"
                    )
                    self._received_at, self._probed = time.monotonic(), False
                    self.received_nbytes += len(data)
                    self._handle(frames.unpack(data))
                except TransportTimeout:
                    self._check_health()
                except (TransportClosed, RemoteProtocolError) as error:
                    if self._closing:
                        return
                    self._rejoin(error)
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            if not self._closing:
                self._inbox.failed(error)

    def _check_health(self) -> None:
        """A heartbeat: after a while without a frame, a connection that works answers a probe.

        One that does not may be broken in a way that TCP does not see: bytes were lost or changed.
        """
        idle = time.monotonic() - self._received_at
        if idle > 2 * self._idle and self._probed:
            self._rejoin(TransportClosed(f"{self.address} does not answer for {idle:.1f} s"))
        elif idle > self._idle and not self._probed:
            self._probed = True
            with self._lock:
                self._probe_step = next(iter(self._unacked.steps()), None)
                self._try_to_send(CatchUp(self._inbox.received()), 0)

    def _handle(self, frame: frames.Frame) -> None:
        with self._changed:
            message = self._session.receive(frame)
            if self._session.state is State.CLOSED:
                self._changed.notify_all()
        if isinstance(message, Update | Counted):
            self._breaks = 0
        if isinstance(message, Update):
            self._inbox.add(message)
        elif isinstance(message, Counted):
            with self._changed:
                self.version = max(self.version, message.version)
                self._unacked.withdraw(frame.step, set(message.pieces))
                self._changed.notify_all()
        elif isinstance(message, CaughtUp):
            self._ask_for_more(message.version)
            self._check_acknowledged()
        elif isinstance(message, Late):
            self._inbox.late(message)
        elif isinstance(message, Refusal):
            if not message.pieces:
                raise Refused(f"{self.address}: {message.text}")
            # Both under the lock: a flush that returns must find what was refused.
            with self._changed:
                refused = self._unacked.withdraw(frame.step, set(message.pieces))
                self._inbox.refused(refused)
                self._changed.notify_all()
        elif isinstance(message, Leave):
            self._left(message)

    def _check_acknowledged(self) -> None:
        """A server answers in order: it has acknowledged all pushes before a probe it answers."""
        with self._lock:
            lost = self._probe_step is not None and self._probe_step in self._unacked
            self._probe_step = None
        if lost:
            raise RemoteProtocolError(f"{self.address} answers, but has lost a push")

    def _ask_for_more(self, version: int) -> None:
        """Ask until an answer brings nothing new: the server sends only so much at once."""
        if version > self._asked:
            self._asked = version
            with self._lock:
                self._try_to_send(CatchUp(version), 0)

    def _left(self, leave: Leave) -> None:
        if leave.reason is Reason.LOST:
            raise WorkerLost(f"{self.address}: {leave.text}")
        if self._leaving is None:
            raise RemoteProtocolError(f"{self.address} ended the session: {leave.text}")

    def _rejoin(self, reason: TransportClosed | RemoteProtocolError) -> None:
        """After a break: connect, join, and send again all pushes that are not acknowledged.

        That repairs what the network has damaged, too. What breaks the connection again and again
        is not the network's fault.
        """
        self._breaks += 1
        if self._breaks > _MOST_BREAKS:
            raise reason
        _logger.warning("%s; connecting again", reason)
        self._connection.close()
        joined = self._joiner.join(again=True)
        with self._lock:
            self._use(joined)
            self._received_at, self._probed, self._probe_step = time.monotonic(), False, None
            self.rejoined += 1
            for step, push in self._unacked:
                self._try_to_send(push, step)
            if self._leaving is not None:
                self._try_to_send(self._leaving, 0)

    def _try_to_send(self, message: Message, step: int) -> None:
        """Send it, unless the connection is broken: ``_rejoin`` sends again what must arrive."""
        if self._session.state is not State.READY:
            return
        self._session.send(message, step=step)
        data = b"".join(frames.pack(self._session.encode(message, step=step)))
        self.sent_nbytes += len(data)
        with suppress(TransportClosed):
            self._connection.send(data, deadline_seconds=self._deadline)
