"""Restart is exact: snapshot and tail are the residuals and updates of an unbroken server."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thinwire as tw
from tests.log_cases import QUICK, RUN, open_log, snapshots
from thinwire.compressor.encoded import Encoded
from thinwire.exchange.roles import ServerRole
from thinwire.gradient.pieces import Key, Piece
from thinwire.gradient.steps import StepInfo
from thinwire.server.log.log import Log
from thinwire.server.log.snapshot import Snapshot
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.frame import SERVER, Frame, pack
from thinwire.wire.messages import Push, Update, decode, encode

PIECE = Piece.whole(Key("fc.weight", (1000,)))
STEPS, WORKERS = 9, 2
RECIPES = {
    "1 bit": lambda: tw.doublesqueeze(tw.OneBit()),
    "top-k": lambda: tw.doublesqueeze(tw.TopK(0.01)),
    "dither": lambda: tw.doublesqueeze(tw.Dither(2)),
}


def pushes_of(step: int) -> list[Frame]:
    def push(worker: int) -> Frame:
        seed = torch.Generator().manual_seed(WORKERS * step + worker)
        payload = tw.Float32().encode(torch.randn(PIECE.numel, generator=seed), seed=0)
        entry = Entry(0, EncodedBytes(tw.Float32.wire_id, PIECE.numel, memoryview(payload)))
        return encode(Push(step, 0.1, (entry,)), run=RUN, epoch=1, worker=worker, step=step)

    return [push(worker) for worker in range(WORKERS)]


def answer(server: ServerRole, pushes: list[Frame]) -> Frame:
    messages = [decode(frame) for frame in pushes]
    encoded = [
        [
            Encoded(entry.encoded.wire_id, entry.encoded.numel, entry.encoded.payload)
            for entry in message.entries
        ]
        for message in messages
        if isinstance(message, Push)
    ]
    (one,) = server.answer([PIECE], encoded, StepInfo(pushes[0].step, 0.1))
    entry = Entry(0, one)
    update = Update(pushes[0].step, (entry,))
    return encode(update, run=RUN, epoch=1, worker=SERVER, step=0)


def serve(log: Log, server: ServerRole, *, snapshot_at: int) -> None:
    for step in range(1, STEPS + 1):
        pushes = pushes_of(step)
        for frame in (*pushes, answer(server, pushes)):
            log.append(pack(frame))
        log.commit()
        if step == snapshot_at:
            log.snapshot(Snapshot(log.run, log.epoch, server.compressor.state_dict()))


def replay(folder: Path, server: ServerRole) -> int:
    """Load the snapshot and answer the logged pushes again; the number of updates compared."""
    log, recovery = Log.open(folder, QUICK, new_run=RUN)
    with log:
        if recovery.snapshot is not None:
            server.compressor.load_state_dict(recovery.snapshot.buffers)
        waiting: list[Frame] = []
        compared = 0
        for frame in recovery.frames():
            if frame.kind == Push.kind:
                waiting.append(frame)
            else:
                assert answer(server, waiting) == frame
                waiting, compared = [], compared + 1
    return compared


@pytest.mark.parametrize("snapshot_at", [0, 1, 5, STEPS])
@pytest.mark.parametrize("recipe", RECIPES)
def test_snapshot_and_tail_are_the_server_that_never_stopped(
    tmp_path: Path, recipe: str, snapshot_at: int
) -> None:
    whole, tail, full = (ServerRole(RECIPES[recipe](), workers=WORKERS, seed=3) for _ in range(3))
    with open_log(tmp_path) as log:
        serve(log, whole, snapshot_at=snapshot_at)
    assert replay(tmp_path, tail) == STEPS - snapshot_at
    for path in snapshots(tmp_path):
        path.unlink()
    assert replay(tmp_path, full) == STEPS
    assert state_of(tail) == state_of(full) == state_of(whole)


def state_of(server: ServerRole) -> dict[str, bytes]:
    buffers = server.compressor.state_dict()["fc.weight"]
    return {name: buffer.numpy().tobytes() for name, buffer in buffers.items()}
