"""``FrameReader`` and ``SendQueue``: frames as a stream of bytes, each behind its length.

On the wire a frame is its length, 32 bits little-endian, and its bytes. The largest length is no
frame but a heartbeat. Neither class knows sockets: a ``Stream`` does.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import Protocol, TypeAlias

from thinwire.errors import RemoteProtocolError

Buffers: TypeAlias = bytes | tuple[bytes | memoryview, ...]
"""One frame: as it is, or in pieces such as header and body.

The caller may reuse its buffers at once: what the system has not taken yet is copied, unless it is
``bytes``. The receiver gets a view of the frame where it arrived.
"""


def nbytes_of(frame: Buffers) -> int:
    return (
        len(frame) if isinstance(frame, bytes) else sum(memoryview(part).nbytes for part in frame)
    )


ENDED = "the connection ended"
"""What a ConnectionError says of a peer that has just gone, which is no reason for a warning."""

_LENGTH = struct.Struct("<I")
_HEARTBEAT = 0xFFFF_FFFF
HEARTBEAT = _LENGTH.pack(_HEARTBEAT)
_DIRECT_NBYTES = 1 << 15
"""So much of a frame is received where it belongs. Less comes with what follows, and is copied."""


class Stream(Protocol):
    """A connected socket that never waits: it raises BlockingIOError instead."""

    def recv_into(self, buffer: memoryview) -> int:
        """How many bytes came; 0 at the end. Raises OSError if the connection broke."""

    def send(self, buffers: Iterable[memoryview]) -> int:
        """Send the front of ``buffers``; returns how many bytes of it need not be given again."""

    def push(self) -> None:
        """Send the rest of what ``send`` took."""

    @property
    def takes_all(self) -> bool:
        """Whether ``recv_into`` has taken all that was there if it does not fill its buffer."""


class FrameReader:
    """Cuts what comes over a stream into frames of at most ``most_nbytes``, which may be raised."""

    def __init__(self, most_nbytes: int) -> None:
        self.most_nbytes = most_nbytes
        self._length = b""
        self._frame: memoryview | None = None
        self._filled = 0

    @property
    def unfinished_nbytes(self) -> int:
        """What is allocated for a frame that has not come whole."""
        return 0 if self._frame is None else len(self._frame)

    def read(
        self, stream: Stream, scratch: memoryview
    ) -> tuple[int, list[memoryview | None], bool]:
        """Receive once: how many bytes came, the frames that are complete, and whether more may be
        there at once. A heartbeat is None. Raises BlockingIOError if there is nothing, OSError, or
        RemoteProtocolError for a frame that is too long.
        """
        frame = self._frame
        if frame is not None and len(frame) - self._filled >= _DIRECT_NBYTES:
            nbytes = stream.recv_into(frame[self._filled :])
            self._filled += nbytes
            if self._filled < len(frame):
                return nbytes, [], not stream.takes_all
            self._frame = None
            return nbytes, [frame], True
        nbytes = stream.recv_into(scratch)
        more = nbytes == len(scratch) or not stream.takes_all
        return nbytes, self._cut(scratch[:nbytes]), more

    def _cut(self, data: memoryview) -> list[memoryview | None]:
        frames: list[memoryview | None] = []
        at = 0
        while at < len(data):
            if self._frame is None:
                missing = _LENGTH.size - len(self._length)
                self._length += data[at : at + missing]
                at += missing
                if len(self._length) == _LENGTH.size:
                    self._begin(frames)
            else:
                part = data[at : at + len(self._frame) - self._filled]
                self._frame[self._filled : self._filled + len(part)] = part
                self._filled += len(part)
                at += len(part)
                if self._filled == len(self._frame):
                    frames.append(self._frame)
                    self._frame = None
        return frames

    def _begin(self, frames: list[memoryview | None]) -> None:
        (nbytes,) = _LENGTH.unpack(self._length)
        self._length = b""
        if nbytes == _HEARTBEAT:
            frames.append(None)
        elif nbytes > self.most_nbytes:
            raise RemoteProtocolError(f"it sends {nbytes} bytes, the limit is {self.most_nbytes}")
        elif nbytes == 0:
            frames.append(memoryview(b""))
        else:
            self._frame, self._filled = memoryview(bytearray(nbytes)), 0


class SendQueue:
    """Frames that the system has not taken yet, in order. ``len`` counts them."""

    def __init__(self) -> None:
        self._frames: deque[list[memoryview]] = deque()
        self._begun = False
        """Whether the front of the first one has left."""
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: Buffers) -> None:
        """The buffers stay the caller's until ``own`` is called or all of them were sent."""
        parts = (frame,) if isinstance(frame, bytes) else frame
        views = [memoryview(part).cast("B") for part in parts]
        self._append([memoryview(_LENGTH.pack(sum(map(len, views)))), *views])

    def add_heartbeat(self) -> None:
        """Unless something waits to be sent, which says as much."""
        if not self._frames:
            self._append([memoryview(HEARTBEAT)])

    def _append(self, views: list[memoryview]) -> None:
        self._frames.append([view for view in views if view])
        self.nbytes += sum(map(len, views))

    def flush(self, stream: Stream) -> bool:
        """Send what the system takes now; returns whether that is all. Raises OSError if the
        connection broke.
        """
        try:
            while self._frames:
                self._sent(stream.send(chain.from_iterable(self._frames)))
            stream.push()
        except BlockingIOError:
            return False
        return True

    def _sent(self, nbytes: int) -> None:
        self.nbytes -= nbytes
        self._begun = self._begun or nbytes > 0
        while nbytes:
            views = self._frames[0]
            if nbytes < len(views[0]):
                views[0] = views[0][nbytes:]
                return
            nbytes -= len(views.pop(0))
            if not views:
                self._frames.popleft()
                self._begun = nbytes > 0

    def own(self) -> None:
        """Copy what is left of the newest frame, if its buffers may change."""
        views = self._frames[-1]
        if any(not isinstance(view.obj, bytes) for view in views):
            self._frames[-1] = [memoryview(b"".join(views))]

    def withdraw(self) -> bool:
        """Take the newest frame back, unless its front has left; returns whether it was."""
        if not self._frames or (self._begun and len(self._frames) == 1):
            return False
        self.nbytes -= sum(map(len, self._frames.pop()))
        return True
