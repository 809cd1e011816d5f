"""Writes the golden log files that are not there: ``python -m tests.golden.make_log``.

Golden bytes are read for ever, so an existing file is never written again.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tests.log_cases import RUN, push
from thinwire.server.log.records import Commit, Head, pack_control
from thinwire.server.log.snapshot import Snapshot, write_snapshot
from thinwire.wire.frame import pack

FOLDER = Path(__file__).parent / "log"
HEAD = Head(number=3, first=12, version=5, salt=b"saltsalt")
RECORD = push(41)
SNAPSHOT_RECORD = 13
SNAPSHOT = Snapshot(
    RUN,
    2,
    buffers={"fc.weight": {"residual": torch.tensor([1.0, -2.0, 0.5])}},
    versions={"fc.weight": 5},
    steps={0: 41, 1: 40},
    counters={"refused": 1},
    pending=(RECORD,),
)


def segment_bytes() -> bytes:
    record = b"".join(pack(RECORD))
    commit = Commit(HEAD.salt, HEAD.first, 1, len(record))
    return pack_control(HEAD, run=RUN, epoch=2) + record + pack_control(commit, run=RUN, epoch=2)


def make(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if not (folder / "segment.bin").exists():
        (folder / "segment.bin").write_bytes(segment_bytes())
    if not (folder / "snapshot.bin").exists():
        write_snapshot(folder / "snapshot.bin", SNAPSHOT, record=SNAPSHOT_RECORD)


if __name__ == "__main__":
    make(FOLDER)
