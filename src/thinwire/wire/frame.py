"""One frame: a 40-byte header, then one body. docs/wire-format.md is the specification.

Bytes in, objects out: this file does not know what a body means, and never reads or waits.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields

from thinwire import _native, errors

MAGIC = b"TWIR"
VERSION = 1
SERVER = 0xFFFF_FFFF  # in the place of a worker: the server wrote this frame

_FIELDS = struct.Struct("<4sBBHQIIQI")  # magic version kind reserved run epoch worker step nbytes
_CRC = struct.Struct("<I")
HEADER_NBYTES = _FIELDS.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Limits:
    """What this side will read or write, checked before anything is allocated.

    ``max_body_nbytes``: 64 MiB of payloads, and 1 MiB for the largest table of entries and the
    fixed fields. A model of any size fits, cut into several frames, and a server never holds more
    than this of a worker's unfinished frame. ``max_entries``: pieces in one message; 65536 rows of
    14 bytes are 896 KiB. ``max_numel``: elements of one piece, because a sparse payload of a few
    bytes may claim any number and its reader allocates for it; 2**26 are 256 MiB of float32.
    ``max_text_nbytes``: a sentence or two for a human.
    """

    max_body_nbytes: int = (64 + 1) << 20
    max_entries: int = 1 << 16
    max_numel: int = 1 << 26
    max_text_nbytes: int = 1 << 10

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 0xFFFF_FFFF:
                raise errors.ConfigError(
                    f"limits: {field.name} {value}, expected 0..4294967295, its field has 32 bits"
                )


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Frame:
    """A header and its body. ``worker`` is the sender: a worker's number, or ``SERVER``.

    ``body`` is a view of a buffer that somebody else owns and leaves alone while the frame is used.
    """

    kind: int
    run: int
    epoch: int
    worker: int
    step: int
    body: memoryview

    def __post_init__(self) -> None:
        check_uint("frame: kind", self.kind, bits=8)
        check_uint("frame: run", self.run, bits=64)
        check_uint("frame: epoch", self.epoch, bits=32)
        check_uint("frame: worker", self.worker, bits=32)
        check_uint("frame: step", self.step, bits=64)
        check_bytes("frame: body", self.body)


def check_uint(where: str, value: int, *, bits: int) -> None:
    """Raise LocalProtocolError unless ``value`` fits in an unsigned field of ``bits`` bits."""
    if not 0 <= value < 1 << bits:
        raise errors.LocalProtocolError(f"{where} {value}, expected 0..{(1 << bits) - 1}")


def check_bytes(where: str, view: memoryview) -> None:
    """Raise LocalProtocolError unless ``view`` is plain bytes, so that its length is its nbytes."""
    if view.format != "B" or view.ndim != 1 or not view.c_contiguous:
        raise errors.LocalProtocolError(
            f"{where}: a view of format {view.format!r}, {view.ndim} dimensions and strides "
            f"{view.strides}, expected contiguous bytes"
        )


def pack(frame: Frame, *, limits: Limits = DEFAULT_LIMITS) -> tuple[bytes, memoryview]:
    """Return header and body as two buffers, so that the body is never copied."""
    nbytes = len(frame.body)
    if nbytes > limits.max_body_nbytes:
        raise errors.LocalProtocolError(
            f"frame: body of {nbytes} bytes, the limit is {limits.max_body_nbytes}"
        )
    head = _FIELDS.pack(
        MAGIC, VERSION, frame.kind, 0, frame.run, frame.epoch, frame.worker, frame.step, nbytes
    )
    return head + _CRC.pack(_checksum(head, frame.body)), frame.body


def _checksum(head: bytes | memoryview, body: memoryview) -> int:
    return _native.crc32c(body, _native.crc32c(head))


def unpack(data: memoryview, *, limits: Limits = DEFAULT_LIMITS) -> Frame:
    """Read exactly one frame, all of ``data``; its body is a view of ``data``."""
    nbytes = frame_nbytes(data, limits=limits)
    if len(data) != nbytes:
        raise errors.RemoteProtocolError(f"frame: {len(data)} bytes, its header says {nbytes}")
    _, _, kind, _, run, epoch, worker, step, _ = _FIELDS.unpack_from(data)
    (expected,) = _CRC.unpack_from(data, _FIELDS.size)
    body = data[HEADER_NBYTES:]
    found = _checksum(data[: _FIELDS.size], body)
    if found != expected:
        raise errors.RemoteProtocolError(
            f"frame: checksum {found:#010x}, its header says {expected:#010x}, "
            f"in {nbytes} bytes of kind {kind} from worker {worker} at step {step}"
        )
    return Frame(kind, run, epoch, worker, step, body)


def frame_nbytes(header: memoryview, *, limits: Limits = DEFAULT_LIMITS) -> int:
    """The whole frame's nbytes, from at least its header: for readers of streams and files.

    The checksum can only be checked by ``unpack``: until then the answer is bounded, not trusted.
    """
    if len(header) < HEADER_NBYTES:
        raise errors.RemoteProtocolError(
            f"frame: {len(header)} bytes, the header alone has {HEADER_NBYTES}"
        )
    magic, version, _, reserved, _, _, _, _, nbytes = _FIELDS.unpack_from(header)
    if magic != MAGIC:
        raise errors.RemoteProtocolError(f"frame: starts with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise errors.RemoteProtocolError(f"frame: version {version}, this side speaks {VERSION}")
    if reserved != 0:
        raise errors.RemoteProtocolError(f"frame: reserved field {reserved:#06x}, expected 0")
    if nbytes > limits.max_body_nbytes:
        raise errors.RemoteProtocolError(
            f"frame: body of {nbytes} bytes, the limit is {limits.max_body_nbytes}"
        )
    return HEADER_NBYTES + int(nbytes)


def frame_kind(header: memoryview) -> int:
    """Which message a frame is, from at least its header; not trusted until ``unpack``, either."""
    return int(_FIELDS.unpack_from(header)[2])
