"""A switch that holds every packet for a time, because this kernel may have no netem.

    python -m thinwire_lab.bench.delay SECONDS PORT...

It forwards Ethernet frames between network interfaces of its namespace, by the address that they
are for, and prints a line when it is ready. A frame of many packets, as Linux hands them to a
network card, stays whole: the cost is that of a frame, not of its bytes.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator

from thinwire_lab.processes import end_with_parent, reserve_stdout

_MOST_NBYTES = 64_000_000
"""Held at once. As in a router, what comes when this is full is dropped."""

_ALL_PROTOCOLS = 3
_SOL_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23
"""Options of packet sockets (linux/if_packet.h): checksums and sizes of unfinished packets go with
each frame, and what this program sends is not received again."""
_SEND_BUFFER, _RECEIVE_BUFFER = 32, 33
"""SO_SNDBUFFORCE and SO_RCVBUFFORCE: sizes that the system's limits would not allow."""
_BUFFER_NBYTES = 16_000_000
_FRAME_NBYTES = 66_000
_TO, _FROM = slice(10, 16), slice(16, 22)
"""Where addresses are: behind 10 bytes of the header that _VNET_HEADER asks for."""
_FRAMES_IN_A_ROW = 64
_IDLE_SECONDS = 1.0
_FIRST = -20
"""Niceness: a delay must not depend on what else this machine computes."""


class DelayLine:
    """Frames with the port that each came from, in order, until they are due."""

    def __init__(self, seconds: float, most_nbytes: int = _MOST_NBYTES) -> None:
        self._seconds, self._most_nbytes = seconds, most_nbytes
        self._held: deque[tuple[float, int, bytes]] = deque()
        self._nbytes = 0

    def add(self, now: float, port: int, frame: bytes) -> None:
        """Hold a frame from ``now`` on, or drop it."""
        if self._nbytes + len(frame) <= self._most_nbytes:
            self._nbytes += len(frame)
            self._held.append((now + self._seconds, port, frame))

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Take out what has been held long enough."""
        while self._held and self._held[0][0] <= now:
            _, port, frame = self._held.popleft()
            self._nbytes -= len(frame)
            yield port, frame

    def wait_seconds(self, now: float) -> float:
        """How long nothing will be due, as far as is known now."""
        return max(0.0, self._held[0][0] - now) if self._held else _IDLE_SECONDS


class Switch:
    """Ports, and behind which of them each address is."""

    def __init__(self, seconds: float, names: list[str]) -> None:
        self._ports = [_port(name) for name in names]
        self._numbers = {port.fileno(): number for number, port in enumerate(self._ports)}
        self._places: dict[bytes, int] = {}
        self._line = DelayLine(seconds)

    def forward(self) -> None:
        """Receive what has come, or wait for it, and send what is due."""
        wait = self._line.wait_seconds(time.monotonic())
        for descriptor in select.select(self._numbers, (), (), wait)[0]:
            self._receive(self._numbers[descriptor])
        for port, frame in self._line.due(time.monotonic()):
            place = self._places.get(frame[_TO])
            others = (number for number in self._numbers.values() if number != port)
            for number in others if place is None else (place,):
                _send(self._ports[number], frame)

    def _receive(self, port: int) -> None:
        now = time.monotonic()
        for _ in range(_FRAMES_IN_A_ROW):
            try:
                frame = self._ports[port].recv(_FRAME_NBYTES)
            except BlockingIOError:
                return
            self._places[frame[_FROM]] = port
            self._line.add(now, port, frame)


def _port(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for option in (_VNET_HEADER, _IGNORE_OUTGOING):
        port.setsockopt(_SOL_PACKET, option, 1)
    for option in (_SEND_BUFFER, _RECEIVE_BUFFER):
        port.setsockopt(socket.SOL_SOCKET, option, _BUFFER_NBYTES)
    port.bind((name, _ALL_PROTOCOLS))
    port.setblocking(False)
    return port


def _send(port: socket.socket, frame: bytes) -> None:
    """A queue that is full drops it."""
    try:
        port.send(frame)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
            raise


def main() -> None:
    end_with_parent()
    messages = reserve_stdout()
    os.setpriority(os.PRIO_PROCESS, 0, _FIRST)
    switch = Switch(float(sys.argv[1]), sys.argv[2:])
    print("ready", file=messages, flush=True)
    while True:
        switch.forward()


if __name__ == "__main__":
    main()
