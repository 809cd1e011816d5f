"""``Snapshot``: a server's state after one record of its log, as a file of frames.

docs/log-format.md has the bytes. What the state means is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import ConfigError, LogError, ProtocolError, RemoteProtocolError
from thinwire.files import Buffer
from thinwire.server.log.files import FrameFile, find_numbered, numbered_path, write_whole
from thinwire.server.log.records import FILES, FIRST_KIND
from thinwire.wire.body import Reader, Writer
from thinwire.wire.frame import SERVER, Frame, check_uint, pack

_CODES: Mapping[torch.dtype, int] = {torch.float32: 1, torch.float64: 2}
_TYPES: Mapping[int, np.dtype[np.generic]] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}


def write_tensor(piece: str, name: str, tensor: Tensor) -> Writer:
    """Write piece text, name text, type u8, dimensions u8, their sizes u64, then all elements."""
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise ConfigError(f"snapshot: {name} of {piece!r} is {tensor.dtype}, expected a float")
    body = Writer("tensor", FILES)
    body.text(piece)
    body.text(name)
    body.uint(code, 1)
    body.uint(tensor.dim(), 1)
    for size in tensor.shape:
        body.uint(size, 8)
    body.raw(tensor.detach().cpu().numpy().astype(_TYPES[code], copy=False).tobytes())
    return body


def read_tensor(data: memoryview) -> tuple[str, str, Tensor]:
    """Piece, name and a tensor with its own memory. Raises ProtocolError for anything else."""
    body = Reader("tensor", data, FILES)
    piece, name = body.text(), body.text()
    code = body.uint(1)
    kind = _TYPES.get(code)
    if kind is None:
        raise RemoteProtocolError(f"tensor: type {code}, expected one of {sorted(_TYPES)}")
    shape = tuple(body.uint(8) for _ in range(body.uint(1)))
    values = np.frombuffer(body.raw(math.prod(shape) * kind.itemsize), kind)
    body.finish()
    native = values.astype(kind.newbyteorder("="))  # a copy: what was read belongs to the frame
    return piece, name, torch.from_numpy(native.reshape(shape))


HEAD_KIND = FIRST_KIND + 3
TENSOR_KIND = FIRST_KIND + 4


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All state of a server. Numbers are whole, from 0 and below 2**64.

    ``buffers`` are those of each piece, as ``Compressor.state_dict`` gives them; ``versions`` the
    last one closed of each piece; ``steps`` the last one accepted of each worker; ``counters`` all
    other numbers. ``pending`` are pushes that were accepted but are in no version yet: they lie
    before the snapshot in the log, so that a replay does not reach them.
    """

    run: int
    epoch: int
    buffers: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    pending: tuple[Frame, ...] = ()

    def __post_init__(self) -> None:
        for where in ("versions", "steps", "counters"):
            for key, number in getattr(self, where).items():
                check_uint(f"snapshot: {where} of {key!r}", number, bits=64)
        for worker in self.steps:
            check_uint("snapshot: worker", worker, bits=32)


def snapshot_path(folder: Path, record: int) -> Path:
    return numbered_path(folder, "snapshot", record)


def find_snapshots(folder: Path) -> dict[int, Path]:
    """Path by record, the newest last. Raises LogError if the folder cannot be listed."""
    return find_numbered(folder, "snapshot")


def write_snapshot(path: Path, snapshot: Snapshot, *, record: int) -> int:
    """Write it atomically; returns its nbytes. ``record`` is the first one after it."""
    return write_whole(path, _frames(snapshot, record))


def _frames(snapshot: Snapshot, record: int) -> Iterator[tuple[Buffer, ...]]:
    def packed(kind: int, body: Writer) -> tuple[Buffer, ...]:
        frame = Frame(kind, snapshot.run, snapshot.epoch, SERVER, record, body.finish())
        return pack(frame, limits=FILES)

    yield packed(HEAD_KIND, _head(snapshot))
    for piece, buffers in snapshot.buffers.items():
        for name, tensor in buffers.items():
            yield packed(TENSOR_KIND, write_tensor(piece, name, tensor))
    for frame in snapshot.pending:
        yield pack(frame, limits=FILES)


def _head(snapshot: Snapshot) -> Writer:
    body = Writer("snapshot", FILES)
    for table in (snapshot.versions, snapshot.counters):
        body.uint(len(table), 4)
        for name, number in table.items():
            body.text(name)
            body.uint(number, 8)
    body.uint(len(snapshot.steps), 4)
    for worker, step in snapshot.steps.items():
        body.uint(worker, 4)
        body.uint(step, 8)
    body.uint(sum(map(len, snapshot.buffers.values())), 4)
    body.uint(len(snapshot.pending), 4)
    return body


def read_snapshot(path: Path, *, record: int) -> Snapshot:
    """Raises LogError, with file and byte, unless it is whole and of this record."""
    with FrameFile(path) as file:
        try:
            return _read(file, record)
        except ProtocolError as error:
            raise LogError(f"log: {path}, byte {file.offset}: {error}") from error


def _read(file: FrameFile, record: int) -> Snapshot:
    head = _next(file, HEAD_KIND)
    if head.step != record:
        raise RemoteProtocolError(f"snapshot: of record {head.step}, its name says {record}")
    body = Reader("snapshot", head.body, FILES)
    versions, counters = _read_table(body), _read_table(body)
    steps = {body.uint(4): body.uint(8) for _ in range(body.uint(4))}
    tensors, pending = body.uint(4), body.uint(4)
    body.finish()
    buffers: dict[str, dict[str, Tensor]] = {}
    for _ in range(tensors):
        piece, name, tensor = read_tensor(_next(file, TENSOR_KIND).body)
        buffers.setdefault(piece, {})[name] = tensor
    frames = tuple(_next(file) for _ in range(pending))
    if file.offset != file.nbytes:
        raise RemoteProtocolError(f"snapshot: {file.nbytes - file.offset} bytes too many")
    return Snapshot(head.run, head.epoch, buffers, versions, steps, counters, frames)


def _read_table(body: Reader) -> dict[str, int]:
    return {body.text(): body.uint(8) for _ in range(body.uint(4))}


def _next(file: FrameFile, kind: int | None = None) -> Frame:
    frame = file.read()
    if frame is None:
        raise RemoteProtocolError("snapshot: ends too early")
    if kind is not None and frame.kind != kind:
        raise RemoteProtocolError(f"snapshot: frame of kind {frame.kind}, expected {kind}")
    return frame
