"""wire/stream.py: the same frames however bytes are cut, and nothing sent twice or in part."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

import pytest
from hypothesis import given, settings, strategies as st

from thinwire.errors import RemoteProtocolError
from thinwire.wire.stream import HEARTBEAT, FrameReader, SendQueue

MOST_NBYTES = 100_000
SIZES = st.one_of(
    st.integers(0, 40), st.sampled_from([32_767, 32_768, 32_769, 65_535, 65_536, 70_000, 100_000])
)


class FakeStream:
    """Gives and takes as many bytes at a time as it is told, and then raises BlockingIOError.

    ``records``: like TLS, it takes bytes that the system does not take yet, but no more until then.
    """

    def __init__(
        self, incoming: bytes = b"", amounts: Iterable[int] = (), *, records: bool = False
    ):
        self.incoming, self.taken = memoryview(incoming), b""
        self.amounts = iter(amounts)
        self.records, self.takes_all = records, not records
        self.rest = b""

    def recv_into(self, buffer: memoryview) -> int:
        nbytes = min(len(buffer), len(self.incoming), max(1, self._amount()))
        if not len(self.incoming):
            raise BlockingIOError
        buffer[:nbytes] = self.incoming[:nbytes]
        self.incoming = self.incoming[nbytes:]
        return nbytes

    def send(self, buffers: Iterable[memoryview]) -> int:
        self.push()
        data, amount = b"".join(islice(buffers, 5)), self._amount()
        if not amount:
            raise BlockingIOError
        self.rest = data if self.records else data[:amount]
        nbytes = len(self.rest)
        if self.records:
            with suppress(BlockingIOError):
                self.push()
        else:
            self.taken, self.rest = self.taken + self.rest, b""
        return nbytes

    def push(self) -> None:
        while self.rest:
            amount = self._amount()
            if not amount:
                raise BlockingIOError
            self.taken, self.rest = self.taken + self.rest[:amount], self.rest[amount:]

    def _amount(self) -> int:
        return next(self.amounts, 1 << 30)


def packed(frames: Iterable[bytes | None]) -> bytes:
    return b"".join(HEARTBEAT if f is None else len(f).to_bytes(4, "little") + f for f in frames)


def read_all(reader: FrameReader, stream: FakeStream) -> list[bytes | None]:
    """Until nothing is there."""
    scratch = memoryview(bytearray(1 << 16))
    found: list[bytes | None] = []
    while True:
        try:
            nbytes, frames, _ = reader.read(stream, scratch)
        except BlockingIOError:
            return found
        assert nbytes
        found += [None if frame is None else bytes(frame) for frame in frames]


def frames_of(sizes: Iterable[int | None]) -> list[bytes | None]:
    return [None if n is None else bytes([i % 251]) * n for i, n in enumerate(sizes)]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.none(), SIZES), max_size=12),
    st.lists(st.one_of(st.integers(1, 9), st.integers(1, 70_000)), max_size=60),
)
def test_any_cut_of_the_bytes_gives_the_same_frames(
    sizes: list[int | None], amounts: list[int]
) -> None:
    frames, reader = frames_of(sizes), FrameReader(MOST_NBYTES)
    assert read_all(reader, FakeStream(packed(frames), amounts)) == frames
    assert reader.unfinished_nbytes == 0


@given(st.integers(0, 20), st.binary(max_size=20))
def test_a_frame_is_none_before_its_last_byte(cut: int, data: bytes) -> None:
    whole = packed([data])
    cut = min(cut, len(whole) - 1)
    reader = FrameReader(MOST_NBYTES)
    assert read_all(reader, FakeStream(whole[:cut])) == []
    assert reader.unfinished_nbytes == (len(data) if cut >= 4 else 0)
    assert read_all(reader, FakeStream(whole[cut:])) == [data]


@given(st.integers(11, (1 << 32) - 2))
def test_a_frame_that_is_too_long_is_refused_before_anything_is_allocated(nbytes: int) -> None:
    reader = FrameReader(10)
    with pytest.raises(RemoteProtocolError, match=f"it sends {nbytes} bytes, the limit is 10"):
        read_all(reader, FakeStream(nbytes.to_bytes(4, "little")))
    assert reader.unfinished_nbytes == 0


def test_frames_that_were_read_are_not_written_again() -> None:
    """Their memory is their receiver's, however small they are."""
    reader, scratch = FrameReader(MOST_NBYTES), memoryview(bytearray(1 << 16))
    stream = FakeStream(packed([b"first", b"x" * 70_000, b"second"]))
    found: list[memoryview | None] = []
    while stream.incoming:
        found += reader.read(stream, scratch)[1]
        scratch[:] = b"!" * len(scratch)
    assert [frame and bytes(frame) for frame in found] == [b"first", b"x" * 70_000, b"second"]


PIECES = st.lists(st.binary(max_size=30), min_size=1, max_size=4)
ACTIONS = st.lists(
    st.one_of(
        PIECES.map(tuple),
        st.binary(max_size=30),
        st.sampled_from(["flush", "withdraw", "heartbeat"]),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=300)
@given(ACTIONS, st.lists(st.integers(0, 40), max_size=80), st.booleans())
def test_a_queue_sends_each_frame_whole_and_once_or_not_at_all(
    actions: list[bytes | tuple[bytes, ...] | str], amounts: list[int], records: bool
) -> None:
    """Whatever the stream takes, and though all buffers are used again at once."""
    stream, queue = FakeStream(amounts=amounts, records=records), SendQueue()
    expected: list[bytes | None] = []
    for action in actions:
        if action == "flush":
            queue.flush(stream)
        elif action == "heartbeat":
            if not queue:
                expected.append(None)
            queue.add_heartbeat()
        elif action == "withdraw":
            if queue and queue.withdraw():
                expected.pop()
        else:
            assert not isinstance(action, str)
            expected.append(action if isinstance(action, bytes) else b"".join(action))
            add_and_reuse(queue, stream, action)
        assert queue.nbytes == len(packed(expected)) - len(stream.taken) - len(stream.rest)
    while not queue.flush(stream):
        pass
    assert not queue
    assert queue.nbytes == 0
    assert stream.taken == packed(expected)


def add_and_reuse(queue: SendQueue, stream: FakeStream, frame: bytes | tuple[bytes, ...]) -> None:
    if isinstance(frame, bytes):
        queue.add(frame)
        return
    buffers = [bytearray(part) for part in frame]
    queue.add(tuple(map(memoryview, buffers)))
    queue.flush(stream)
    if queue:
        queue.own()
    for buffer in buffers:
        buffer[:] = b"!" * len(buffer)


def test_all_frames_that_are_not_taken_can_be_withdrawn_but_one_that_has_begun() -> None:
    """Or each of a worker's attempts to send would be kept, and arrive at last."""
    stream, queue = FakeStream(amounts=[2] + [0] * 50), SendQueue()
    queue.add(b"first")
    queue.flush(stream)
    for _ in range(20):
        queue.add(b"x" * 1000)
        queue.flush(stream)
        assert queue.withdraw()
    assert len(queue) == 1
    assert not queue.withdraw()
    stream.amounts = iter(())
    queue.flush(stream)
    assert stream.taken == packed([b"first"])
    assert not queue.withdraw()
