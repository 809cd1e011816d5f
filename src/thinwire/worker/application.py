"""How a worker asks a server to be let in."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.errors import Refused, RemoteProtocolError, TransportError
from thinwire.model import digest_of
from thinwire.transport.base import Connection
from thinwire.transport.deadline import Deadline
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

_LEAST_SECONDS = 0.1
"""For the answer, however long it took to connect."""


@dataclass(frozen=True, slots=True)
class Application:
    """What a worker says to be let in."""

    rank: int
    workers: int
    pieces: int
    description: Describe
    checksums: tuple[int, ...] = ()
    """Of the weights of version 0, if those are what it begins with."""


class NotYet(TransportError):
    """The server has not noticed yet that the connection before this one is over, or the network
    has damaged what it heard."""


def introduce(
    mine: Application,
    session: Session,
    connection: Connection,
    *,
    version: int,
    again: bool,
    deadline: Deadline,
) -> tuple[Welcome, int]:
    """Ask to be let in at ``version``: the welcome, and how many steps the server has counted.

    Raises why it does not want this worker; NotYet if ``again`` and that may pass.
    """
    digest = digest_of(mine.description, mine.workers)
    checksums = () if version else mine.checksums
    join = Join(mine.workers, mine.pieces, digest, version, checksums)
    for message in (mine.description, join):
        session.send(message)
        connection.send(frames.pack(session.encode(message)), deadline_seconds=_left(deadline))
    data = connection.receive(deadline_seconds=_left(deadline), what="a welcome")
    frame = frames.unpack(data)
    # A server of another run may say so, though that is no frame of this session.
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
