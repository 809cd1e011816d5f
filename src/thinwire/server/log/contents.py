"""``read_contents``: the frames of one file, as values for a command to print.

It reads without a lock and never writes, so that a running server's log may be inspected; the
newest group may then be half-written.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from thinwire.codec import registry
from thinwire.errors import LogError, ProtocolError, UnknownCodecError
from thinwire.server.log.files import FrameFile
from thinwire.server.log.records import Commit, Head, read_control
from thinwire.server.log.scan import Damage, scan
from thinwire.server.log.snapshot import HEAD_KIND, TENSOR_KIND, read_snapshot, read_tensor
from thinwire.wire.body import Entry
from thinwire.wire.frame import HEADER_NBYTES, SERVER, Frame
from thinwire.wire.messages import MESSAGES, Describe, Message, Push, Update, decode

_OWN_KINDS = {
    Head.kind: "segment",
    Commit.kind: "commit",
    HEAD_KIND: "snapshot",
    TENSOR_KIND: "tensor",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One frame. ``detail`` is its body without payloads, or why that is ``refused``.

    ``rate`` is the learning rate of a push that gives it.
    """

    offset: int
    nbytes: int
    kind: str
    run: int
    epoch: int
    worker: int | None
    step: int
    version: int | None
    pieces: int | None
    detail: str
    refused: bool = False
    rate: float | None = None
    description: Describe | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """A file: what it is, its frames, and its first damage, if there is any."""

    path: Path
    what: str
    nbytes: int
    rows: list[Row]
    damage: Damage | None


def read_contents(path: Path) -> Contents:
    """A segment, a snapshot or any other file of frames. Its first frame says which."""
    with FrameFile(path) as file:
        try:
            first = file.read()
        except ProtocolError as error:
            return Contents(
                path, "frames", file.nbytes, [], Damage(path, 0, file.nbytes, str(error))
            )
        kind = None if first is None else first.kind
        file.offset = 0
        if kind == Head.kind:
            return _segment(file)
        contents = _frames(file)
    return _snapshot(contents) if kind == HEAD_KIND else contents


def _segment(file: FrameFile) -> Contents:
    rows: list[Row] = []
    segment = scan(file.path, lambda offset, frame: rows.append(_row(offset, frame)))
    damage = segment if isinstance(segment, Damage) else segment.damage
    return Contents(file.path, "segment", file.nbytes, rows, damage or _refused(file, rows))


def _frames(file: FrameFile) -> Contents:
    rows: list[Row] = []
    damage = None
    offset = 0
    try:
        while frame := file.read():
            rows.append(_row(offset, frame))
            offset = file.offset
    except ProtocolError as error:
        damage = Damage(file.path, offset, file.nbytes - offset, str(error))
    return Contents(file.path, "frames", file.nbytes, rows, damage or _refused(file, rows))


def _refused(file: FrameFile, rows: list[Row]) -> Damage | None:
    """A whole frame without a valid message is damage as well: its sender had a bug."""
    for row in rows:
        if row.refused:
            return Damage(file.path, row.offset, row.nbytes, row.detail, later=row.offset)
    return None


def _snapshot(contents: Contents) -> Contents:
    damage = contents.damage
    try:
        read_snapshot(contents.path, record=contents.rows[0].step)
    except LogError as error:
        end = contents.rows[-1].offset + contents.rows[-1].nbytes
        damage = damage or Damage(contents.path, end, contents.nbytes - end, str(error))
    return Contents(contents.path, "snapshot", contents.nbytes, contents.rows, damage)


def _row(offset: int, frame: Frame) -> Row:
    name = MESSAGES[frame.kind].__name__ if frame.kind in MESSAGES else f"kind {frame.kind}"
    row = Row(
        offset,
        HEADER_NBYTES + len(frame.body),
        _OWN_KINDS.get(frame.kind, name.lower()),
        frame.run,
        frame.epoch,
        None if frame.worker == SERVER else frame.worker,
        frame.step,
        version=None,
        pieces=None,
        detail="",
    )
    try:
        return _described(row, frame)
    except ProtocolError as error:
        return replace(row, detail=str(error), refused=True)


def _described(row: Row, frame: Frame) -> Row:
    """The row with what the body says."""
    if frame.kind == Head.kind:
        head = read_control(frame, Head)
        detail = f"number {head.number}, first record {head.first}"
        return replace(row, version=head.version, detail=detail)
    if frame.kind == Commit.kind:
        commit = read_control(frame, Commit)
        last = commit.first + commit.count - 1
        single = commit.count == 1
        records = f"record {commit.first}" if single else f"records {commit.first} to {last}"
        return replace(row, detail=f"{records}, {commit.nbytes} bytes")
    if frame.kind == HEAD_KIND:
        return replace(row, detail=f"state after {frame.step} records")
    if frame.kind == TENSOR_KIND:
        piece, name, tensor = read_tensor(frame.body)
        return replace(row, detail=f"{piece}: {name} {list(tensor.shape)}")
    return _with_message(row, decode(frame))


def _with_message(row: Row, message: Message) -> Row:
    row = replace(row, version=getattr(message, "version", None))
    if isinstance(message, Push | Update):
        row = replace(row, pieces=len(message.entries), detail=_codecs(message.entries))
        rate = message.learning_rate if isinstance(message, Push) else 0.0
        return replace(row, rate=rate, detail=f"{row.detail}; rate {rate:g}") if rate else row
    if isinstance(message, Describe):
        return replace(row, description=message, detail=in_words(message))
    text = getattr(message, "text", "")
    reason = getattr(message, "reason", None)
    return replace(row, detail=text if reason is None else f"{reason.name}: {text}")


def in_words(description: Describe) -> str:
    """Which server it is for, and how large the model is."""
    numel = sum(math.prod(tensor.shape) for tensor in description.tensors)
    return (
        f"server {description.server} of {description.servers}; {len(description.tensors)} "
        f"tensors, {numel} elements"
    )


def _codecs(entries: tuple[Entry, ...]) -> str:
    counts = Counter(_codec_name(entry.encoded.wire_id) for entry in entries)
    names = ", ".join(name if n == 1 else f"{n} {name}" for name, n in counts.items())
    return f"{names}; {sum(entry.encoded.numel for entry in entries)} elements" if entries else ""


def _codec_name(wire_id: int) -> str:
    try:
        return registry.codec_class(wire_id).name
    except UnknownCodecError:
        return f"codec {wire_id}"
