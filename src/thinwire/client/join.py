"""``Joiner``: connect to a server and join it by a handshake, with backoff until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import _native
from thinwire.clock import Deadline
from thinwire.codec.dense import bytes_of
from thinwire.errors import Refused, RemoteProtocolError, TransportError, TransportTimeout
from thinwire.model import digest_of
from thinwire.transport.base import Connection
from thinwire.wire import frame as frames
from thinwire.wire.messages import (
    Describe,
    Join,
    Leave,
    Message,
    Reason,
    Refusal,
    Welcome,
    decode,
)
from thinwire.wire.session import Session

_BACKOFF_SECONDS = 0.1
_LEAST_SECONDS = 0.1
"""For the answer, however long it took to connect."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The worker that asks to join, and its model."""

    rank: int
    workers: int
    pieces: int
    description: Describe
    checksums: tuple[int, ...] = ()
    """Of the weights of version 0, if the worker begins with those."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A connection after its handshake, and what the server sent in that."""

    session: Session
    connection: Connection
    welcome: Welcome
    counted: int
    """How many steps of this worker the server has counted."""
    version: int
    """The one that the worker joined with."""


class NotYet(TransportError):
    """The server has not noticed yet that the connection before this one is over, or the network
    has damaged the request: a retry may succeed."""


class Joiner:
    """Joins one server, as often as the connection breaks.

    ``connect`` makes a connection within so many seconds; ``applied`` is the worker's version.
    """

    def __init__(
        self,
        connect: Callable[[float], Connection],
        request: JoinRequest,
        applied: Callable[[], int],
        *,
        deadline_seconds: float,
    ) -> None:
        self._connect, self._request, self._applied = connect, request, applied
        self._deadline = deadline_seconds
        self._stopped = False
        self.run = 0
        """The server's; 0 before the first handshake."""

    def stop(self) -> None:
        """Do not try again."""
        self._stopped = True

    def join(self, *, again: bool) -> Joined:
        """Retry until the server accepts this worker. ``again``: it did before."""
        until = time.monotonic() + self._deadline
        while True:
            try:
                left = max(until - time.monotonic(), _BACKOFF_SECONDS)
                return self._try_to_join(left, again=again)
            except (TransportError, RemoteProtocolError) as error:
                if isinstance(error, TransportTimeout) and not again:
                    raise  # it says best what is wrong with an address
                if time.monotonic() > until or self._stopped:
                    raise TransportTimeout(
                        f"this worker could not join within {self._deadline:g} s ({error})"
                    ) from error
            again = True
            time.sleep(_BACKOFF_SECONDS)

    def _try_to_join(self, seconds: float, *, again: bool) -> Joined:
        deadline = Deadline(seconds)
        connection = self._connect(seconds)
        session = Session.of_worker(self._request.rank, run=self.run)
        version = self._applied()
        try:
            welcome, counted = handshake(
                self._request,
                session,
                connection,
                version=version,
                again=again,
                deadline=deadline,
            )
        except BaseException:
            connection.close()
            raise
        self.run = session.run
        return Joined(session, connection, welcome, counted, version)


def handshake(
    request: JoinRequest,
    session: Session,
    connection: Connection,
    *,
    version: int,
    again: bool,
    deadline: Deadline,
) -> tuple[Welcome, int]:
    """Ask to join at ``version``: the welcome, and how many steps the server has counted.

    Raises why the server refuses this worker; NotYet if ``again`` and a retry may succeed.
    """
    digest = digest_of(request.description, request.workers)
    checksums = () if version else request.checksums
    join = Join(request.workers, request.pieces, digest, version, checksums)
    for message in (request.description, join):
        session.send(message)
        connection.send(frames.pack(session.encode(message)), deadline_seconds=_left(deadline))
    data = connection.receive(deadline_seconds=_left(deadline), what="a welcome")
    frame = frames.unpack(data)
    # A server of another run refuses by a Leave of its own run, which is no frame of this session.
    answer = decode(frame) if frame.kind == Leave.kind else session.receive(frame)
    if not isinstance(answer, Welcome):
        raise _refused(connection.address, answer, again=again)
    return answer, frame.step


def _left(deadline: Deadline) -> float:
    return max(deadline.left_seconds(), _LEAST_SECONDS)


def _refused(address: str, answer: Message, *, again: bool) -> Exception:
    if not isinstance(answer, Refusal | Leave):
        return RemoteProtocolError(f"{address}: {type(answer).__name__}, expected a welcome")
    text = f"{address}: {answer.text}"
    passing = answer.reason in (Reason.UNKNOWN_WORKER, Reason.PROTOCOL)
    return NotYet(text) if passing and again else Refused(text)


def checksums_of(weights: Iterable[Tensor]) -> tuple[int, ...]:
    """The CRC32C of the elements of each, in order, whatever their layout, device and type."""
    return tuple(_checksum(tensor.detach()) for tensor in weights)


def _checksum(weights: Tensor) -> int:
    flat = weights.cpu().contiguous().view(-1)
    return _native.crc32c(bytes_of(flat.view(torch.uint8)))
