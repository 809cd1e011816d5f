"""What fuzzers, replays and damage tests all do with bytes, and what may come of it.

Each reader here returns whether the bytes were accepted. Whatever else happens is a bug.
"""

from __future__ import annotations

import torch

from thinwire import errors
from thinwire.codec import registry
from thinwire.codec.dense import Float32
from thinwire.wire.body import Entry
from thinwire.wire.frame import SERVER, Frame, frame_nbytes, pack, unpack
from thinwire.wire.messages import Join, Push, Update, Welcome, decode, encode
from thinwire.wire.session import Session, State

RUN, EPOCH, WORKER = 7, 2, 3
MAX_NUMEL = 1 << 16


def read_frame(data: bytes) -> bool:
    """A whole frame: header, checksum, body, and both ends of a session."""
    try:
        frame = unpack(memoryview(data))
    except errors.RemoteProtocolError:
        return False
    assert frame_nbytes(memoryview(data)) == len(data)
    assert b"".join(pack(frame)) == data, "a frame has two encodings"
    return read_body(frame)


def read_body(frame: Frame) -> bool:
    """A frame whose checksum is right already, so that fuzzers come past it."""
    for session in _sessions():
        _hear(session, frame)
    try:
        message = decode(frame)
    except errors.RemoteProtocolError:
        return False
    again = encode(message, run=frame.run, epoch=frame.epoch, worker=frame.worker, step=frame.step)
    assert again == frame, "a message has two encodings"
    if isinstance(message, Push | Update):
        for entry in message.entries:
            _read_entry(entry)
    return True


def _sessions() -> list[Session]:
    """Both ends, new and ready."""
    new_worker, new_server = Session.of_worker(WORKER), Session.of_server(RUN, EPOCH)
    worker, server = Session.of_worker(WORKER), Session.of_server(RUN, EPOCH)
    join, welcome = Join(4, 161, bytes(32), version=0), Welcome(0, 4, 0)
    worker.send(join)
    server.receive(worker.encode(join))
    server.send(welcome)
    worker.receive(server.encode(welcome))
    return [new_worker, new_server, worker, server]


def _hear(session: Session, frame: Frame) -> None:
    try:
        session.receive(frame)
    except errors.RemoteProtocolError:
        assert session.state in (State.FAILED, State.CLOSED)


def _read_entry(entry: Entry) -> None:
    if entry.encoded.numel <= MAX_NUMEL:  # a receiver compares it with its own before it allocates
        read_payload(entry.encoded.wire_id, entry.encoded.numel, bytes(entry.encoded.payload))


def read_payload(wire_id: int, numel: int, payload: bytes) -> bool:
    """One payload: decoded, added and summed up, to the same tensor."""
    out, total = torch.full((numel,), float("nan")), torch.ones(numel)
    twice = [payload, payload]
    try:
        registry.decode(wire_id, payload, out)
    except errors.UnknownCodecError:
        return False
    except errors.CorruptPayloadError:
        try:
            registry.add(wire_id, payload, total, weight=0.5)
        except errors.CorruptPayloadError:
            assert torch.equal(total, torch.ones(numel)), "a refused payload changed the tensor"
        else:
            raise AssertionError("a payload may be added but not decoded") from None
        try:
            registry.sum_up(wire_id, twice, total, weight=0.5)
        except errors.CorruptPayloadError:
            return False
        raise AssertionError("a payload may be summed up but not decoded") from None
    assert wire_id == Float32.wire_id or bool(out.isfinite().all()), "an element is not finite"
    registry.add(wire_id, payload, total, weight=0.5)
    same = torch.equal(total, 1 + 0.5 * out) or wire_id == Float32.wire_id
    assert same, "adding is not decoding and adding"
    registry.sum_up(wire_id, twice, total, weight=0.5)
    same = torch.equal(total, 0.5 * out + 0.5 * out) or wire_id == Float32.wire_id
    assert same, "summing up is not decoding and adding"
    return True


def frames_target(data: bytes) -> bool:
    """First byte even: a whole frame. Odd: a kind and a body, the header being right."""
    if not data or data[0] % 2 == 0:
        return read_frame(data[1:])
    kind, body = data[1:2], memoryview(data[2:])
    sender = SERVER if data[0] & 2 else WORKER
    return read_body(Frame(int.from_bytes(kind, "little"), RUN, EPOCH, sender, 1, body))


def payloads_target(data: bytes) -> bool:
    """A wire id in one byte, the number of elements in two, then the payload."""
    wire_id, numel = data[:1], data[1:3]
    return read_payload(
        int.from_bytes(wire_id, "little"), int.from_bytes(numel, "little"), data[3:]
    )


TARGETS = {"frames": frames_target, "payloads": payloads_target}
