"""Log files written by any released version are read for ever, and written the same."""

from __future__ import annotations

from pathlib import Path

from tests.golden.make_log import (
    FOLDER,
    HEAD,
    SNAPSHOT,
    SNAPSHOT_RECORD,
    make,
    segment_bytes,
)
from tests.log_cases import RUN
from thinwire.server.log.scan import Scan, scan
from thinwire.server.log.snapshot import read_snapshot


def test_the_segment_is_read_as_what_it_was() -> None:
    found = scan(FOLDER / "segment.bin")
    assert isinstance(found, Scan)
    assert (found.run, found.epoch, found.head, found.count) == (RUN, 2, HEAD, 1)
    assert found.damage is None


def test_the_snapshot_is_read_as_what_it_was() -> None:
    found = read_snapshot(FOLDER / "snapshot.bin", record=SNAPSHOT_RECORD)
    residual = found.buffers["fc.weight"]["residual"]
    assert residual.tolist() == [1.0, -2.0, 0.5]
    assert (found.versions, found.steps) == (SNAPSHOT.versions, SNAPSHOT.steps)
    assert (found.counters, found.pending) == (SNAPSHOT.counters, SNAPSHOT.pending)


def test_both_are_written_as_their_golden_bytes(tmp_path: Path) -> None:
    make(tmp_path)
    for name in ("segment.bin", "snapshot.bin"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
    assert {path.name for path in FOLDER.iterdir()} == {"segment.bin", "snapshot.bin"}
    assert segment_bytes() == (FOLDER / "segment.bin").read_bytes()
