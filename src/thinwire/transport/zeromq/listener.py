"""``ZeromqListener``: a server's side over TCP, all its workers on one ROUTER."""

from __future__ import annotations

import time

import zmq

from thinwire.errors import TransportClosed
from thinwire.transport.base import Buffers, PeerGone, PeerId, Received, join
from thinwire.transport.peer_limits import Deadline, TransportLimits
from thinwire.transport.zeromq.door import Door, Watch
from thinwire.transport.zeromq.inbox import COUNTS_NBYTES, Inbox
from thinwire.transport.zeromq.links import Link, own_socket
from thinwire.transport.zeromq.port import Port
from thinwire.transport.zeromq.roster import Roster

# A wait is woken when something happens; this is a safety net.
_MOST_WAIT_SECONDS = 0.5
# The thread that has the lock does it, so that a busy owner cannot keep the watch from it.
_DRAIN_SECONDS = 0.05
_READS_PER_LOOK = 64  # messages, between two reads of the monitor
_SKIP_AT_ONCE = 200  # messages of dropped peers
_HOLD_SECONDS = 0.02  # before another thread may have the lock
_SOON_SECONDS = 0.001  # until the next look, if there is more to read
_UNADMITTED_SECONDS = 0.01  # while there are peers that may be hostile
_NOT_UNDERSTOOD = {
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "it left during the handshake, or timed out",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "it sent what is not ZMTP or was changed on the way, "
    "or only one side has keys",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "its key is not on the list",
}
# Below this a copy is faster than lending the buffer.
_LEND_NBYTES = 1 << 16


class ZeromqListener:
    """Made by ``listen``. A thread of its own reads while no thread waits in ``receive``."""

    def __init__(self, port: Port, limits: TransportLimits) -> None:
        self._port = port
        self._limits = limits
        self._address = port.socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._local_port = int(self._address.rpartition(":")[2])
        self._roster = Roster(limits)
        self._inbox = Inbox(limits)
        self._reads = 0  # since there was nothing to read
        self._drained = time.monotonic()
        self._awaited = False  # a thread waits in receive
        self._door = Door(None)
        self._note_connections(self._drained)
        self._watch = Watch(self._look)

    @property
    def address(self) -> str:
        return self._address

    def receive(self, *, deadline_seconds: float) -> Received | PeerGone | None:
        deadline = Deadline(deadline_seconds)
        patience = Deadline(deadline_seconds + _HOLD_SECONDS)
        while True:
            with self._port.lock:
                self._check_open()
                event, dry = self._take(time.monotonic())
            if event is not None:
                return event
            # What was read may have been nothing to return, and there may be much of it.
            if patience.passed() or (dry and deadline.passed()):
                return None
            if dry:
                self._wait(min(_MOST_WAIT_SECONDS, deadline.left_seconds()))

    def _wait(self, seconds: float) -> None:
        self._awaited = True
        self._port.wait_in(seconds)
        self._awaited = False

    def _take(self, now: float) -> tuple[Received | PeerGone | None, bool]:
        """What happened next, and whether nothing is left."""
        if now - self._drained > _DRAIN_SECONDS:
            self._drain(now)
        event, dry = (self._inbox.take(), False) if self._inbox else self._next(now)
        if isinstance(event, Received):
            link = self._roster.of_peer(event.peer)
            if link is not None:
                link.flow.read(len(event.frame))
                self._send_credits(link, now)
        return event, dry

    def _next(self, now: float) -> tuple[Received | PeerGone | None, bool]:
        """Read one message: what happened, and whether there was nothing to read."""
        if self._reads % _READS_PER_LOOK == 0:
            self._note_connections(now)
        event, dry = None, False
        if not self._roster.gone:
            try:
                event = self._read(now)
            except zmq.Again:
                dry = True
            # A peer is known to have left before what it sent is read to the end, never after.
            self._reads = 0 if dry else self._reads + 1
            self._roster.turn(dry=dry, now=now)
        if event is None and self._roster.gone:
            return self._roster.gone.popleft(), dry
        return event, dry

    def _note_connections(self, now: float) -> None:
        for event, value in self._port.monitor_events():
            if event is zmq.Event.ACCEPTED:
                own = own_socket(value, local_port=self._local_port)
                self._roster.accepted(Link(value, own, self._limits, now=now))
            elif event is zmq.Event.LISTENING:
                self._door = Door(own_socket(value, local_port=self._local_port))
            elif event is zmq.Event.DISCONNECTED:
                self._roster.disconnected(value)
            elif event in _NOT_UNDERSTOOD:
                self._roster.refused(_NOT_UNDERSTOOD[event], now=now)

    def _read(self, now: float) -> Received | None:
        """One message, or None if it was not to be received. Raises zmq.Again if there is none."""
        for _ in range(_SKIP_AT_ONCE):
            routing_id, part, last, parts = self._read_parts()
            if routing_id not in self._roster.silenced:
                break
        else:
            return None
        link = self._link_of(routing_id, part, now)
        if link is None or link.peer is None or link.dropped:
            return None
        link.count_read(len(part.buffer))
        why = link.allowance.take(len(part.buffer), now=now) or link.excess_before_admission()
        if why is None and parts == 2 and not part.buffer and len(last.buffer) == COUNTS_NBYTES:
            if link.flow.take_credits(last.bytes):
                return None
            why = "its credits are for frames that were not sent"
        why = why or self._refusal_for(part, parts)
        if why is not None:
            self._expel(link, why, now)
            return None
        return Received(link.peer, part.buffer)

    def _read_parts(self) -> tuple[bytes, zmq.Frame, zmq.Frame, int]:
        """The routing id of a message, its first and its last part, and how many there are."""
        receive = self._port.socket.recv
        route = receive(zmq.NOBLOCK)
        first = last = receive(copy=False)  # all parts of a message are there, or none
        parts = 1
        while last.more:
            last = receive(copy=False)
            parts += 1
        return route, first, last, parts

    def _refusal_for(self, part: zmq.Frame, parts: int) -> str | None:
        most, nbytes = self._limits.max_message_nbytes, len(part.buffer)
        if parts > 1:
            return f"it sent a message of {parts} parts, expected 1"
        return f"it sent {nbytes} bytes, the limit is {most}" if nbytes > most else None

    def _link_of(self, routing_id: bytes, part: zmq.Frame, now: float) -> Link | None:
        try:
            fd = int(part.get(zmq.SRCFD))
        except zmq.ZMQError:
            return None  # ZMTP 2 or older, as random bytes look; workers speak ZMTP 3
        link = self._roster.of_route(routing_id, fd)
        if link is not None:
            return link
        self._note_connections(now)  # it was accepted before it could send
        return self._roster.bind(routing_id, fd, now=now)

    def _look(self, seconds: float) -> float | None:
        """Look after the connections; returns when to look again, or None for any time."""
        with self._port.lock:
            if self._port.closed:
                return None
            now = time.monotonic()
            self._note_connections(now)
            self._roster.look(seconds)
            self._roster.check(now, dry=not self._port.readable())
            # Peers that reconnect would send more, faster than it can be discarded.
            self._door.shut(self._roster.has_waste())
            drained = self._awaited or self._drain(now)
            if self._inbox or self._roster.gone:
                self._port.wake()
            self._port.wake_if_readable()
            if not drained:
                return _SOON_SECONDS
            return _UNADMITTED_SECONDS if self._roster.has_unadmitted() else None

    def _drain(self, now: float) -> bool:
        """From libzmq, which has no limit, to the inbox, which has. Returns whether that is all."""
        self._drained = now
        hold = Deadline(_HOLD_SECONDS)
        while not hold.passed():
            event, dry = self._next(now)
            if event is not None:
                self._inbox.add(event)
                self._shrink(event, now)
            elif dry:
                return True
        return False

    def _shrink(self, event: Received | PeerGone, now: float) -> None:
        excess = self._inbox.excess(event.peer) if isinstance(event, Received) else None
        if excess is not None:
            peer, why = excess
            link = self._roster.of_peer(peer)
            if link is not None:
                self._expel(link, why, now)
            self._inbox.remove_frames(peer)

    def _expel(self, link: Link, why: str, now: float) -> None:
        self._roster.expel(link, why, now=now)
        self._port.wake()

    def send(self, peer: PeerId, frame: Buffers) -> None:
        data = join(frame)
        self._limits.check_message(len(data))
        with self._port.lock:
            self._check_open()
            now = time.monotonic()
            link = self._roster.of_peer(peer)
            if link is None:
                return
            why = self._refusal_to_send(link, len(data), now) or self._queue(link, [data])
            if why is None:
                link.flow.sent(len(data))
            else:
                self._expel(link, why, now)
            self._port.wake_if_readable()

    def _refusal_to_send(self, link: Link, nbytes: int, now: float) -> str | None:
        if link.refusal_to_send(nbytes) is not None:
            self._drain(now)  # its credits may be behind unread frames
        return link.refusal_to_send(nbytes)

    def _send_credits(self, link: Link, now: float) -> None:
        if link.flow.due():
            why = self._queue(link, [b"", link.flow.credits()])
            if why is not None:
                self._expel(link, why, now)

    def _queue(self, link: Link, parts: list[bytes]) -> str | None:
        """Give a message to libzmq; returns why it does not go, if that is the peer's fault."""
        *first, last = parts
        try:
            for part in (link.routing_id, *first):
                self._port.socket.send(part, zmq.SNDMORE | zmq.NOBLOCK)
            self._port.socket.send(last, zmq.NOBLOCK, copy=len(last) < _LEND_NBYTES)
        except zmq.Again:
            return f"it does not read: {self._limits.max_unsent_messages} messages wait for it"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return None  # it has just ended, which the monitor reports
        link.queued(sum(map(len, parts)))
        return None

    def admit(self, peer: PeerId) -> None:
        with self._port.lock:
            self._roster.admit(peer)

    def drop(self, peer: PeerId, reason: str = "") -> None:
        with self._port.lock:
            self._check_open()
            link = self._roster.of_peer(peer)
            if link is not None:
                self._roster.drop(link, reason, now=time.monotonic())
            self._roster.ignore(peer)
            self._inbox.remove(peer)

    def close(self) -> None:
        self._watch.stop()
        self._door.close()
        self._port.close()
        self._roster.close()

    def _check_open(self) -> None:
        if self._port.closed:
            raise TransportClosed(f"the listener at {self._address} is closed")
