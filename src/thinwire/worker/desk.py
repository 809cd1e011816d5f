"""One server, as a worker sees it: a session that survives broken connections.

A thread hears the server. Pushes are kept until the server has said that it has them, and are sent
again after a break; the server counts each once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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
from thinwire.wire import frame as frames
from thinwire.wire.messages import (
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
)
from thinwire.wire.session import Session, State

_RETRY_SECONDS = 0.1


class Inbox(Protocol):
    """What is done with the server's words. Called by the desk's thread."""

    def update(self, update: Update) -> None: ...

    def refused(self, step: int, refusal: Refusal) -> None: ...

    def failed(self, error: BaseException) -> None: ...

    def applied(self) -> int:
        """The last version that this worker has applied to all pieces."""


class Desk:
    """Talks with one server. ``connect`` makes a new connection, within so many seconds."""

    def __init__(
        self,
        connect: Callable[[float], Connection],
        description: Describe,
        digest: bytes,
        inbox: Inbox,
        *,
        rank: int,
        workers: int,
        pieces: int,
        deadline_seconds: float,
    ) -> None:
        self._connect, self._inbox = connect, inbox
        self._description = description
        self._join = (workers, pieces, digest)
        self._rank, self._deadline = rank, deadline_seconds
        self._run = 0
        self._unacknowledged: dict[int, list[Push]] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._session, self._connection = self._begin()
        threading.Thread(
            target=self._listen, name=f"thinwire server {self.address}", daemon=True
        ).start()

    @property
    def address(self) -> str:
        return self._connection.address

    def push(self, step: int, push: Push) -> None:
        """Send a push, now or after the connection is there again."""
        with self._lock:
            self._unacknowledged.setdefault(step, []).append(push)
            if self._session.state is State.READY:
                self._try_to_say(push, step)

    def close(self) -> None:
        """Say goodbye, and wait a moment for the answer."""
        self._closing = True
        with self._lock:
            if self._session.state is State.READY:
                self._try_to_say(Leave(Reason.DONE, ""), 0)
        until = time.monotonic() + 2.0
        while self._session.state is State.LEAVING and time.monotonic() < until:
            time.sleep(0.005)
        self._connection.close()

    def _begin(self) -> tuple[Session, Connection]:
        """Connect and join; raises why the server does not want this worker."""
        connection = self._connect(self._deadline)
        session = Session.of_worker(self._rank, run=self._run)
        workers, pieces, digest = self._join
        hello = Join(workers, pieces, digest, self._inbox.applied())
        for message in (self._description, hello):
            session.send(message)
            connection.send(frames.pack(session.encode(message)), deadline_seconds=self._deadline)
        data = connection.receive(deadline_seconds=self._deadline, what="a welcome")
        answer = session.receive(frames.unpack(data))
        if not isinstance(answer, Welcome):
            connection.close()
            raise Refused(f"{connection.address}: {_text_of(answer)}")
        self._run = session.run
        return session, connection

    def _listen(self) -> None:
        try:
            while self._session.state not in (State.CLOSED, State.LEFT):
                try:
                    data = self._connection.receive(deadline_seconds=1.0, what="an update")
                except TransportTimeout:
                    continue
                except TransportClosed:
                    if self._closing:
                        return
                    self._rejoin()
                    continue
                self._hear(frames.unpack(data))
        except BaseException as error:
            if not self._closing:
                self._inbox.failed(error)

    def _hear(self, frame: frames.Frame) -> None:
        with self._lock:
            message = self._session.receive(frame)
        if isinstance(message, Update):
            self._inbox.update(message)
        elif isinstance(message, Refusal):
            if not message.pieces:
                raise Refused(f"{self.address}: {message.text}")
            self._inbox.refused(frame.step, message)
        elif isinstance(message, Heartbeat):
            with self._lock:
                self._acknowledge(frame.step)
        elif isinstance(message, Leave):
            self._left(message)

    def _acknowledge(self, step: int) -> None:
        """The server answers every push, in the order in which they were sent."""
        pushes = self._unacknowledged.get(step, [])
        del pushes[:1]
        if not pushes:
            self._unacknowledged.pop(step, None)

    def _left(self, leave: Leave) -> None:
        if leave.reason is Reason.LOST:
            raise WorkerLost(f"{self.address}: {leave.text}")
        if not self._closing:
            raise RemoteProtocolError(f"{self.address} ended the session: {leave.text}")

    def _rejoin(self) -> None:
        """After a break: connect again, join, and say again what may not have been heard."""
        until = time.monotonic() + self._deadline
        while True:
            try:
                session, connection = self._begin()
                break
            except TransportError as error:
                if time.monotonic() > until or self._closing:
                    raise TransportTimeout(
                        f"{self.address} was not there again within {self._deadline:g} s ({error})"
                    ) from error
                time.sleep(_RETRY_SECONDS)
        with self._lock:
            self._connection.close()
            self._session, self._connection = session, connection
            for step, pushes in sorted(self._unacknowledged.items()):
                for push in pushes:
                    self._try_to_say(push, step)

    def _try_to_say(self, message: Message, step: int) -> None:
        """What cannot be sent now is sent again by ``_rejoin``."""
        self._session.send(message, step=step)
        with suppress(TransportClosed):
            self._connection.send(
                frames.pack(self._session.encode(message, step=step)),
                deadline_seconds=self._deadline,
            )


def _text_of(message: Message) -> str:
    return message.text if isinstance(message, Refusal | Leave) else type(message).__name__
