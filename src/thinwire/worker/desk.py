"""One server, as a worker sees it: a session that survives broken connections.

A thread hears the server. Pushes are kept until the server has said that it has them, and are sent
again after a break; the server counts each once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol

from thinwire.errors import (
    Refused,
    RemoteProtocolError,
    TransportClosed,
    TransportError,
    TransportTimeout,
    WorkerLost,
)
from thinwire.transport.base import Connection
from thinwire.transport.deadline import Deadline
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
from thinwire.wire.session import Session, State
from thinwire.worker.application import Application, introduce
from thinwire.worker.unconfirmed import Unconfirmed

_logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1
_GOODBYE_SECONDS = 2.0
_MOST_GOODBYE_SECONDS = 30.0
_MOST_BREAKS = 20
_MOST_QUIET_SECONDS = 5.0
"""After this a server is asked whether it is still there."""


class Inbox(Protocol):
    """What is done with the server's words. Called by the desk's thread."""

    def update(self, update: Update) -> None: ...

    def refused(self, entries: Collection[Entry]) -> None:
        """These were not counted."""

    def late(self, late: Late) -> None: ...

    def failed(self, error: BaseException) -> None: ...

    def applied(self) -> int:
        """The last version that this worker has applied to all pieces."""

    def received(self) -> int:
        """The last version up to which everything has come."""


class Desk:
    """Talks with one server. ``connect`` makes a new connection, within so many seconds."""

    def __init__(
        self,
        connect: Callable[[float], Connection],
        application: Application,
        inbox: Inbox,
        *,
        deadline_seconds: float,
    ) -> None:
        self._connect, self._inbox = connect, inbox
        self._application = application
        self._deadline = deadline_seconds
        self._quiet = min(deadline_seconds / 8, _MOST_QUIET_SECONDS)
        self._heard, self._probed = time.monotonic(), False
        self.run = 0
        """The server's; 0 before it has said it."""
        self._unconfirmed = Unconfirmed()
        self._lock = threading.Lock()
        self._all_heard = threading.Condition(self._lock)
        self._closing = False
        self._leaving: Leave | None = None
        self._failure: BaseException | None = None
        self._breaks = 0
        """Since the server was last heard to make progress."""
        self._probe_step: int | None = None
        """A step that was not confirmed when the server was asked whether it is there."""
        self._reported = time.monotonic()
        self.sent_nbytes = self.received_nbytes = 0
        self.rejoined = 0
        """How often the connection was made again."""
        self.counted = 0
        """How many steps of this worker the server had counted when it joined first."""
        self.version = 0
        """The server's newest one, as far as it is known."""
        self._session, self._connection = self._join(again=False)
        threading.Thread(
            target=self._listen, name=f"thinwire server {self.address}", daemon=True
        ).start()

    @property
    def address(self) -> str:
        return self._connection.address

    def push(self, step: int, push: Push) -> None:
        """Send a push, now or after the connection is there again."""
        with self._lock:
            self._unconfirmed.add(step, push)
            self._try_to_say(push, step)

    def report(self, owed: Callable[[], float], step: int, *, every_seconds: float) -> None:
        """Say what this worker owes, if that is due."""
        if time.monotonic() - self._reported >= every_seconds:
            self._reported = time.monotonic()
            report = Report(owed())
            with self._lock:
                self._try_to_say(report, step)

    def flush(self) -> None:
        """Wait until the server has said that it has every push."""
        with self._all_heard:
            heard = self._all_heard.wait_for(
                lambda: not self._unconfirmed or self._failure is not None, self._deadline
            )
            if self._failure is not None:
                raise self._failure
            if not heard:
                steps = self._unconfirmed.steps()
                raise TransportTimeout(
                    f"{self.address} did not confirm the pushes of steps {steps} within "
                    f"{self._deadline:g} s"
                )

    def close(self, reason: Reason = Reason.DONE, text: str = "") -> None:
        """Say goodbye, and wait for the answer: for a while, if others would wait for this worker.

        After a break it is said again, like everything that was not heard.
        """
        with self._all_heard:
            self._leaving = Leave(reason, shortened(text))
            self._try_to_say(self._leaving, 0)
            seconds = self._deadline if reason is Reason.DONE else _GOODBYE_SECONDS
            heard = self._all_heard.wait_for(
                lambda: self._session.state is State.CLOSED or self._failure is not None,
                min(seconds, _MOST_GOODBYE_SECONDS),
            )
            self._closing = True
        if not heard and reason is Reason.DONE:
            _logger.warning("%s did not hear that this worker is done", self.address)
        self._connection.close()

    def _join(self, *, again: bool) -> tuple[Session, Connection]:
        """Try until this worker is welcome. ``again``: it was before."""
        until = time.monotonic() + self._deadline
        while True:
            try:
                left = max(until - time.monotonic(), _RETRY_SECONDS)
                return self._try_to_join(left, again=again)
            except (TransportError, RemoteProtocolError) as error:
                if isinstance(error, TransportTimeout) and not again:
                    raise  # it says best what is wrong with an address
                if time.monotonic() > until or self._closing:
                    raise TransportTimeout(
                        f"no server let this worker in within {self._deadline:g} s ({error})"
                    ) from error
            again = True
            time.sleep(_RETRY_SECONDS)

    def _try_to_join(self, seconds: float, *, again: bool) -> tuple[Session, Connection]:
        """Connect and join; raises why the server does not want this worker."""
        deadline = Deadline(seconds)
        connection = self._connect(seconds)
        session = Session.of_worker(self._application.rank, run=self.run)
        version = self._inbox.applied()
        try:
            welcome, counted = introduce(
                self._application,
                session,
                connection,
                version=version,
                again=again,
                deadline=deadline,
            )
        except BaseException:
            connection.close()
            raise
        if self.run == 0:
            self.counted = counted
        self.run, self._asked = session.run, version
        self.rules = (welcome.quorum, welcome.staleness)
        self.version = max(self.version, welcome.version)
        return session, connection

    def _listen(self) -> None:
        try:
            while self._session.state not in (State.CLOSED, State.LEFT):
                try:
                    data = self._connection.receive(
                        deadline_seconds=self._quiet / 4, what="an update"
                    )
                    self._heard, self._probed = time.monotonic(), False
                    self.received_nbytes += len(data)
                    self._hear(frames.unpack(data))
                except TransportTimeout:
                    self._check_health()
                except (TransportClosed, RemoteProtocolError) as error:
                    if self._closing:
                        return
                    self._rejoin(error)
        except BaseException as error:
            with self._all_heard:
                self._failure = error
                self._all_heard.notify_all()
            if not self._closing:
                self._inbox.failed(error)

    def _check_health(self) -> None:
        """Nothing has come for a while. A connection that works answers a question.

        One that does not may be broken in a way that TCP does not see: bytes were lost or changed.
        """
        silent = time.monotonic() - self._heard
        if silent > 2 * self._quiet and self._probed:
            self._rejoin(TransportClosed(f"{self.address} does not answer for {silent:.1f} s"))
        elif silent > self._quiet and not self._probed:
            self._probed = True
            with self._lock:
                self._probe_step = next(iter(self._unconfirmed.steps()), None)
                self._try_to_say(CatchUp(self._inbox.received()), 0)

    def _hear(self, frame: frames.Frame) -> None:
        with self._all_heard:
            message = self._session.receive(frame)
            if self._session.state is State.CLOSED:
                self._all_heard.notify_all()
        if isinstance(message, Update | Counted):
            self._breaks = 0
        if isinstance(message, Update):
            self._inbox.update(message)
        elif isinstance(message, Counted):
            with self._all_heard:
                self.version = max(self.version, message.version)
                self._unconfirmed.withdraw(frame.step, set(message.pieces))
                self._all_heard.notify_all()
        elif isinstance(message, CaughtUp):
            self._ask_for_more(message.version)
            self._check_confirmed()
        elif isinstance(message, Late):
            self._inbox.late(message)
        elif isinstance(message, Refusal):
            if not message.pieces:
                raise Refused(f"{self.address}: {message.text}")
            # Both under the lock: who waits for answers to all pushes must find what was refused.
            with self._all_heard:
                refused = self._unconfirmed.withdraw(frame.step, set(message.pieces))
                self._inbox.refused(refused)
                self._all_heard.notify_all()
        elif isinstance(message, Leave):
            self._left(message)

    def _check_confirmed(self) -> None:
        """A server answers in order: pushes before a question that has an answer are confirmed."""
        with self._lock:
            lost = self._probe_step is not None and self._probe_step in self._unconfirmed
            self._probe_step = None
        if lost:
            raise RemoteProtocolError(f"{self.address} answers, but has not heard of a push")

    def _ask_for_more(self, version: int) -> None:
        """Until an answer brings nothing new: the server sends only so much at once."""
        if version > self._asked:
            self._asked = version
            with self._lock:
                self._try_to_say(CatchUp(version), 0)

    def _left(self, leave: Leave) -> None:
        if leave.reason is Reason.LOST:
            raise WorkerLost(f"{self.address}: {leave.text}")
        if self._leaving is None:
            raise RemoteProtocolError(f"{self.address} ended the session: {leave.text}")

    def _rejoin(self, reason: TransportClosed | RemoteProtocolError) -> None:
        """After a break: connect again, join, and say again what may not have been heard.

        What the network has damaged is sent again like that, too. What breaks the connection again
        and again is not the network's fault.
        """
        self._breaks += 1
        if self._breaks > _MOST_BREAKS:
            raise reason
        _logger.warning("%s; connecting again", reason)
        self._connection.close()
        session, connection = self._join(again=True)
        with self._lock:
            self._session, self._connection = session, connection
            self._heard, self._probed, self._probe_step = time.monotonic(), False, None
            self.rejoined += 1
            for step, push in self._unconfirmed:
                self._try_to_say(push, step)
            if self._leaving is not None:
                self._try_to_say(self._leaving, 0)

    def _try_to_say(self, message: Message, step: int) -> None:
        """What cannot be sent now is sent again by ``_rejoin``, if it must be."""
        if self._session.state is not State.READY:
            return
        self._session.send(message, step=step)
        data = b"".join(frames.pack(self._session.encode(message, step=step)))
        self.sent_nbytes += len(data)
        with suppress(TransportClosed):
            self._connection.send(data, deadline_seconds=self._deadline)
