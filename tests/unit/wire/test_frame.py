"""wire/frame.py: one test for each way a frame can be wrong, and what it looks like when right."""

from __future__ import annotations

import array
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.reference.crc32c import crc32c
from thinwire import errors
from thinwire.wire.frame import HEADER_NBYTES, SERVER, Frame, frame_nbytes, pack, unpack
from thinwire.wire.limits import Limits

FRAME = Frame(kind=3, run=7, epoch=2, worker=SERVER, step=41, body=memoryview(b"payload"))


def packed(frame: Frame = FRAME) -> bytearray:
    return bytearray(b"".join(pack(frame)))


def signed(data: bytearray) -> memoryview:
    """``data`` with the checksum that its header and body ask for: wrong in one way only."""
    struct.pack_into("<I", data, 36, crc32c(data[:36] + data[40:]))
    return memoryview(data)


def test_reference_checksum_gives_the_published_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


def test_layout() -> None:
    expected = b"TWIR" + struct.pack("<BBHQIIQI", 1, 3, 0, 7, 2, 0xFFFFFFFF, 41, 7)
    expected += struct.pack("<I", crc32c(expected + b"payload")) + b"payload"
    assert packed() == expected
    assert len(expected) == HEADER_NBYTES + 7 == 47


def test_pack_does_not_copy_the_body() -> None:
    buffer = bytearray(b"payload")
    _, body = pack(replace(FRAME, body=memoryview(buffer)))
    assert body.obj is buffer


def test_unpack_does_not_copy_the_body() -> None:
    data = packed()
    frame = unpack(memoryview(data))
    assert frame == FRAME
    assert frame.body.obj is data


def test_empty_body() -> None:
    frame = replace(FRAME, body=memoryview(b""))
    assert unpack(memoryview(packed(frame))) == frame


@pytest.mark.parametrize("nbytes", [0, 1, 12, 39])
def test_shorter_than_the_header_is_refused(nbytes: int) -> None:
    with pytest.raises(
        errors.RemoteProtocolError, match=f"{nbytes} bytes, the header alone has 40"
    ):
        unpack(memoryview(packed()[:nbytes]))


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, ord("X"), "starts with b'XWIR', expected b'TWIR'"),
        (4, 2, "version 2, this side speaks 1"),
        (6, 1, "reserved field 0x0001, expected 0"),
        (7, 1, "reserved field 0x0100, expected 0"),
        (32, 8, "47 bytes, its header says 48"),
        (32, 6, "47 bytes, its header says 46"),
    ],
)
def test_wrong_header_fields_are_refused(offset: int, value: int, message: str) -> None:
    data = packed()
    data[offset] = value
    with pytest.raises(errors.RemoteProtocolError, match=message):
        unpack(signed(data))


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(errors.RemoteProtocolError, match="48 bytes, its header says 47"):
        unpack(memoryview(packed() + b"\0"))


def test_every_flipped_bit_is_refused() -> None:
    good = packed()
    for bit in range(8 * len(good)):
        bad = good.copy()
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(errors.RemoteProtocolError):
            unpack(memoryview(bad))


def test_a_wrong_checksum_says_whose() -> None:
    data = packed()
    data[-1] ^= 1
    with pytest.raises(errors.RemoteProtocolError, match=r"in 47 bytes of kind 3 .* at step 41"):
        unpack(memoryview(data))


def test_limit_is_checked_before_the_length_is_used() -> None:
    data = packed()
    struct.pack_into("<I", data, 32, 0xFFFFFFFF)
    with pytest.raises(errors.RemoteProtocolError, match="body of 4294967295 bytes, the limit is"):
        unpack(signed(data))
    with pytest.raises(errors.RemoteProtocolError, match="body of 4294967295 bytes, the limit is"):
        frame_nbytes(memoryview(data)[:40])


def test_limit_is_inclusive_on_both_sides() -> None:
    data = memoryview(packed())
    assert unpack(data, limits=Limits(max_body_nbytes=7)) == FRAME
    with pytest.raises(errors.RemoteProtocolError, match="body of 7 bytes, the limit is 6"):
        unpack(data, limits=Limits(max_body_nbytes=6))
    with pytest.raises(errors.LocalProtocolError, match="body of 7 bytes, the limit is 6"):
        pack(FRAME, limits=Limits(max_body_nbytes=6))


def test_frame_nbytes_needs_the_header_only() -> None:
    data = packed()
    assert frame_nbytes(memoryview(data)[:40]) == 47
    assert frame_nbytes(memoryview(data + b"the next frame")) == 47


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(FRAME, kind=256), r"kind 256, expected 0\.\.255"),
        (lambda: replace(FRAME, run=1 << 64), "run 18446744073709551616, expected"),
        (lambda: replace(FRAME, epoch=1 << 32), "epoch 4294967296, expected"),
        (lambda: replace(FRAME, worker=1 << 32), "worker 4294967296, expected"),
        (lambda: replace(FRAME, step=-1), "step -1, expected"),
    ],
)
def test_numbers_that_do_not_fit_are_our_bug(make: Callable[[], Frame], message: str) -> None:
    with pytest.raises(errors.LocalProtocolError, match=f"frame: {message}"):
        make()


@pytest.mark.parametrize(
    "view",
    [
        memoryview(array.array("f", [1.0])),
        memoryview(bytes(6)).cast("B", (2, 3)),
        memoryview(bytes(6))[::2],
    ],
)
def test_a_body_that_is_not_plain_bytes_is_our_bug(view: memoryview) -> None:
    with pytest.raises(errors.LocalProtocolError, match="expected contiguous bytes"):
        replace(FRAME, body=view)


@pytest.mark.parametrize("name", ["max_body_nbytes", "max_entries", "max_numel", "max_text_nbytes"])
@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_impossible_limits_are_refused(name: str, value: int) -> None:
    with pytest.raises(errors.ConfigError, match=f"{name} {value}"):
        Limits(**{name: value})


def test_default_body_limit_holds_the_largest_table() -> None:
    limits = Limits()
    assert limits.max_body_nbytes >= (64 << 20) + limits.max_entries * 14 + 8 + 8 + 4
