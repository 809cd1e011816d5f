"""wire/messages.py and wire/body.py: layouts, and one test for each way a body can be wrong."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import pytest

from thinwire import errors
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.frame import Frame
from thinwire.wire.limits import Limits
from thinwire.wire.messages import (
    MESSAGES,
    CatchUp,
    CaughtUp,
    Counted,
    Describe,
    Described,
    Join,
    Late,
    Leave,
    Message,
    Push,
    Reason,
    Refusal,
    Report,
    Update,
    Welcome,
    decode,
    encode,
)

DIGEST = bytes(range(32))
BIG = 1 << 64


def entry(piece: int, payload: bytes = b"abc", *, numel: int = 5) -> Entry:
    return Entry(piece, EncodedBytes(1, numel, memoryview(payload)))


def body_of(message: Message, *, limits: Limits | None = None) -> bytes:
    limits = limits or Limits()
    return bytes(encode(message, run=1, epoch=1, worker=0, step=0, limits=limits).body)


def read(kind: int, body: bytes, *, limits: Limits | None = None) -> Message:
    return decode(Frame(kind, 1, 1, 0, 0, memoryview(body)), limits=limits or Limits())


def row(piece: int, nbytes: int, *, numel: int = 5) -> bytes:
    return struct.pack("<IHII", piece, 1, numel, nbytes)


def update(*rows: bytes, payloads: bytes = b"", count: int | None = None) -> bytes:
    count = len(rows) if count is None else count
    return struct.pack("<QI", 9, count) + b"".join(rows) + payloads


def test_kinds_are_unique() -> None:
    assert set(MESSAGES) == set(range(1, 14)) - {7}
    assert all(cls.kind == kind for kind, cls in MESSAGES.items())


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (Join(4, 161, DIGEST, 9), struct.pack("<II32sQ", 4, 161, DIGEST, 9)),
        (Join(4, 161, DIGEST, 0), struct.pack("<II32sQI", 4, 161, DIGEST, 0, 0)),
        (Join(4, 161, DIGEST, 0, (7, 5)), struct.pack("<II32sQIII", 4, 161, DIGEST, 0, 2, 7, 5)),
        (Welcome(9, 3, 2), struct.pack("<QII", 9, 3, 2)),
        (
            Describe(1, 2, "r", (Described("w", (3, 4)),), lead=9),
            struct.pack("<IIQI1sII1sBII", 1, 2, 9, 1, b"r", 1, 1, b"w", 2, 3, 4),
        ),
        (
            Push(9, 0.5, (entry(2, b"abc"), entry(7, b"de"))),
            struct.pack("<QdI", 9, 0.5, 2) + row(2, 3) + row(7, 2) + b"abcde",
        ),
        (Update(9, (entry(2),)), update(row(2, 3), payloads=b"abc")),
        (
            Refusal(9, Reason.STALE, "é", (2, 7)),
            struct.pack("<QHI2sIII", 9, 1, 2, "é".encode(), 2, 2, 7),
        ),
        (CatchUp(9), struct.pack("<Q", 9)),
        (CaughtUp(9), struct.pack("<Q", 9)),
        (Counted(9, (2, 7)), struct.pack("<QIII", 9, 2, 2, 7)),
        (Late(9, (2, 7)), struct.pack("<QIII", 9, 2, 2, 7)),
        (Report(0.5), struct.pack("<d", 0.5)),
        (Leave(Reason.DONE, "bye"), struct.pack("<HI3s", 10, 3, b"bye")),
    ],
)
def test_layout(message: Message, body: bytes) -> None:
    assert body_of(message) == body
    assert read(message.kind, body) == message
    for nbytes in range(len(body)):
        with pytest.raises(errors.RemoteProtocolError):
            read(message.kind, body[:nbytes])
    with pytest.raises(errors.RemoteProtocolError):
        read(message.kind, body + b"\0")


def test_header_fields_go_into_the_frame() -> None:
    frame = encode(CatchUp(9), run=1, epoch=2, worker=3, step=4)
    assert (frame.kind, frame.run, frame.epoch, frame.worker, frame.step) == (6, 1, 2, 3, 4)


def test_payloads_are_read_as_views_of_the_body() -> None:
    body = update(row(2, 3), payloads=b"abc")
    message = read(Update.kind, body)
    assert isinstance(message, Update)
    payload = message.entries[0].encoded.payload
    assert isinstance(payload, memoryview)
    assert payload.obj is body


@pytest.mark.parametrize("kind", [0, 7, 14, 255])
def test_unknown_kinds_are_refused(kind: int) -> None:
    with pytest.raises(
        errors.RemoteProtocolError, match=f"frame: kind {kind}, expected one of 1, 2, "
    ):
        read(kind, b"")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"123", "3 bytes are left, a number needs 8"),
        (update(count=0xFFFFFFFF), "count 4294967295, the limit is 65536"),
        (update(count=2), "0 bytes are left, a table of 2 entries needs 28"),
        (update(row(2, 3), payloads=b"ab"), "2 bytes of payloads, their table says 3"),
        (update(row(2, 3), payloads=b"abcd"), "4 bytes of payloads, their table says 3"),
        (update(row(2, 0xFFFFFFFF), row(3, 0xFFFFFFFF)), "their table says 8589934590"),
        (update(row(2, 1), row(2, 1), payloads=b"ab"), "piece 2 after piece 2"),
        (update(row(3, 1), row(2, 1), payloads=b"ab"), "piece 2 after piece 3"),
        (update(row(2, 1, numel=(1 << 26) + 1), payloads=b"a"), "numel 67108865, the limit is"),
    ],
)
def test_wrong_entries_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(errors.RemoteProtocolError, match=f"update: .*{message}"):
        read(Update.kind, body)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (
            Join.kind,
            struct.pack("<II32sQ", 0, 1, DIGEST, 9),
            "join: workers 0, expected at least 1",
        ),
        (
            Join.kind,
            struct.pack("<II32sQII", 4, 161, DIGEST, 9, 1, 7),
            "join: 8 bytes too many",
        ),
        (
            Join.kind,
            struct.pack("<II32sQI", 4, 161, DIGEST, 0, 65537),
            "join: count 65537, the limit is 65536",
        ),
        (Welcome.kind, struct.pack("<QII", 9, 0, 2), "welcome: quorum 0, expected at least 1"),
        (CatchUp.kind, bytes(9), "catchup: 1 bytes too many"),
        (Leave.kind, struct.pack("<HI", 0, 0), r"leave: reason 0, expected 1\.\.10"),
        (Leave.kind, struct.pack("<HI", 11, 0), r"leave: reason 11, expected 1\.\.10"),
        (Leave.kind, struct.pack("<HI", 1, 5), "leave: 0 bytes are left, the text needs 5"),
        (Leave.kind, struct.pack("<HI", 1, 1025), "text nbytes 1025, the limit is 1024"),
        (Leave.kind, struct.pack("<HI2s", 1, 2, b"a\xff"), "not UTF-8 at byte 1 of 2"),
        (Leave.kind, struct.pack("<HI2s", 1, 2, b"\xc0\x80"), "not UTF-8 at byte 0 of 2"),
        (Leave.kind, struct.pack("<HI3s", 1, 3, b"\xed\xa0\x80"), "not UTF-8 at byte 0 of 3"),
        (Refusal.kind, struct.pack("<QHIIII", 9, 1, 0, 2, 7, 7), "piece 7 after piece 7"),
        (Refusal.kind, struct.pack("<QHIII", 9, 4, 0, 1, 7), "1 pieces with DIGEST, expected none"),
        (Refusal.kind, struct.pack("<QHII", 9, 1, 0, 65537), "count 65537, the limit is 65536"),
        (Refusal.kind, struct.pack("<QHII", 9, 1, 0, 3), "a table of 3 pieces needs 12"),
    ],
)
def test_wrong_fields_are_refused(kind: int, body: bytes, message: str) -> None:
    with pytest.raises(errors.RemoteProtocolError, match=message):
        read(kind, body)


@pytest.mark.parametrize("rate", [math.nan, -math.nan, math.inf, -math.inf, -1.0, -0.0, -5e-324])
def test_wrong_learning_rates_are_refused_both_ways(rate: float) -> None:
    with pytest.raises(errors.LocalProtocolError, match="push: learning rate"):
        Push(9, rate, ())
    with pytest.raises(errors.RemoteProtocolError, match="push: learning rate"):
        read(Push.kind, struct.pack("<QdI", 9, rate, 0))


@pytest.mark.parametrize("rate", [0.0, 5e-324, 0.1, 1.7976931348623157e308])
def test_right_learning_rates_are_kept_exactly(rate: float) -> None:
    assert read(Push.kind, body_of(Push(9, rate, ()))) == Push(9, rate, ())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Join(0, 1, DIGEST, 9), "join: workers 0"),
        (lambda: Join(1, 1 << 32, DIGEST, 9), "join: pieces 4294967296"),
        (lambda: Join(1, 1, DIGEST[:31], 9), "join: digest of 31 bytes, expected 32"),
        (lambda: Join(1, 1, DIGEST, BIG), "join: version"),
        (lambda: Join(1, 1, DIGEST, 0, (1 << 32,)), "join: checksum 4294967296"),
        (lambda: Join(1, 1, DIGEST, 9, (7,)), "join: 1 checksums at version 9, expected none"),
        (lambda: Welcome(BIG, 1, 0), "welcome: version"),
        (lambda: Describe(2, 2, "", ()), "describe: server 2, expected 0..1"),
        (lambda: Describe(0, 0, "", ()), "describe: servers 0"),
        (lambda: Described("w", (1 << 32,)), "describe: length"),
        (lambda: Described("w", (1,) * 256), "describe: dimensions 256"),
        (lambda: Welcome(9, 1, -1), "welcome: staleness -1"),
        (lambda: Push(-1, 0.0, ()), "push: version -1"),
        (lambda: Push(9, 0.0, (entry(3), entry(3))), "push: piece 3 after piece 3"),
        (lambda: Update(BIG, ()), "update: version"),
        (lambda: Update(9, (entry(3), entry(2))), "update: piece 2 after piece 3"),
        (lambda: Refusal(BIG, Reason.STALE, ""), "refusal: version"),
        (lambda: Refusal(9, Reason.STALE, "\ud800"), "no UTF-8 encoding at character 0 of 1"),
        (lambda: Refusal(9, Reason.STALE, "", (-1,)), "refusal: piece -1"),
        (lambda: Refusal(9, Reason.STALE, "", (2, 1)), "refusal: piece 1 after piece 2"),
        (lambda: Refusal(9, Reason.DONE, "", (1,)), "1 pieces with DONE, expected none"),
        (lambda: CatchUp(BIG), "catchup: version"),
        (lambda: CaughtUp(-1), "caughtup: version -1"),
        (lambda: Counted(1, (7, 2)), "counted: piece 2 after piece 7"),
        (lambda: Late(1, (2, 2)), "late: piece 2 after piece 2"),
        (lambda: Late(1, (-1,)), "late: worker -1"),
        (lambda: Report(-0.5), "report: owed -0.5"),
        (lambda: Report(float("nan")), "report: owed nan"),
        (lambda: Leave(Reason.DONE, "a\udfff"), "no UTF-8 encoding at character 1 of 2"),
        (lambda: entry(1 << 32), "entry: piece 4294967296"),
        (lambda: Entry(1, EncodedBytes(1 << 16, 1, memoryview(b""))), "entry: codec 65536"),
        (lambda: Entry(1, EncodedBytes(1, -1, memoryview(b""))), "entry: numel -1"),
        (
            lambda: Entry(1, EncodedBytes(1, 1, memoryview(bytes(4))[::2])),
            "entry: payload: .* expected contig",
        ),
    ],
)
def test_messages_that_cannot_be_are_our_bug(make: Callable[[], object], message: str) -> None:
    with pytest.raises(errors.LocalProtocolError, match=message):
        make()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(max_entries=1), "count 2, the limit is 1"),
        (Limits(max_numel=4), "numel 5, the limit is 4"),
        (Limits(max_body_nbytes=45), "body nbytes 46, the limit is 45"),
    ],
)
def test_writers_keep_the_limits(limits: Limits, message: str) -> None:
    with pytest.raises(errors.LocalProtocolError, match=f"update: {message}"):
        body_of(Update(9, (entry(2), entry(3))), limits=limits)


def test_limits_are_inclusive_on_both_sides() -> None:
    message = Update(9, (entry(2), entry(3)))
    limits = Limits(max_entries=2, max_numel=5, max_body_nbytes=46)
    assert read(Update.kind, body_of(message, limits=limits), limits=limits) == message


def test_text_is_limited_in_bytes_not_characters() -> None:
    assert len(body_of(Leave(Reason.DONE, "é" * 512))) == 2 + 4 + 1024
    with pytest.raises(errors.LocalProtocolError, match="text nbytes 1026, the limit is 1024"):
        body_of(Leave(Reason.DONE, "é" * 513))
