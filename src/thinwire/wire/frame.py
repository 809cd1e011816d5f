"""``Frame``: a 40-byte header, then one body. docs/wire-format.md is the specification.

Bytes in, objects out: no I/O, and nothing here knows what a body means.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from thinwire import _native, errors
from thinwire.wire.limits import DEFAULT_LIMITS, MAX_BODY_NBYTES, Limits

MAGIC = b"TWIR"
VERSION = 1
SERVER = 0xFFFF_FFFF  # instead of the number of a worker: the server sent this frame

_FIELDS = struct.Struct("<4sBBHQIIQI")  # magic version kind reserved run epoch worker step nbytes
_CRC = struct.Struct("<I")
HEADER_NBYTES = _FIELDS.size + _CRC.size
MAX_FRAME_NBYTES = MAX_BODY_NBYTES + HEADER_NBYTES


@dataclass(frozen=True, slots=True)
class Frame:
    """A header and its body. ``worker`` is the sender: a worker's number, or ``SERVER``.

    ``body`` is a view: the owner of its buffer must not change it while the frame is used.
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
    checksum = _checksum(data[: _FIELDS.size], body)
    if checksum != expected:
        raise errors.RemoteProtocolError(
            f"frame: checksum {checksum:#010x}, its header says {expected:#010x}, "
            f"in {nbytes} bytes of kind {kind} from worker {worker} at step {step}"
        )
    return Frame(kind, run, epoch, worker, step, body)


def frame_nbytes(header: memoryview, *, limits: Limits = DEFAULT_LIMITS) -> int:
    """The whole frame's nbytes, from at least its header: for readers of streams and files.

    Only ``unpack`` checks the checksum: until then the number is bounded, not trusted.
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
    """The kind of a frame, from at least its header; like ``frame_nbytes`` not to be trusted."""
    return int(_FIELDS.unpack_from(header)[2])
