"""Damaged frames and payloads never do more than they may, and never take more memory than that."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from tests.fuzz.damage import HOSTILE, mend_checksum
from tests.fuzz.make_corpus import frames
from tests.fuzz.readers import frames_target

ROOT = Path(__file__).parents[2]
MAX_GROWTH_NBYTES = 64 << 20


def damage(cases: int, *, deadline_seconds: float) -> None:
    """In a process of its own, whose memory nobody else has used."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.fuzz.damage", str(cases)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=deadline_seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 0.001 < result["accepted"] / cases < 0.5  # most damage is seen, and some is no damage
    assert result["grown_nbytes"] < MAX_GROWTH_NBYTES


def test_20_000_damaged_samples() -> None:
    damage(20_000, deadline_seconds=110)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_1_000_000_damaged_samples() -> None:
    damage(1_000_000, deadline_seconds=1700)


def test_no_claimed_length_is_believed() -> None:
    """Every four bytes of every golden frame say something huge, under a right checksum."""
    tracemalloc.start()
    try:
        for data in frames().values():
            if data[0] % 2:
                continue
            for place in range(1, len(data) - 3):
                for claimed in HOSTILE:
                    hostile = bytearray(data)
                    struct.pack_into("<I", hostile, place, claimed)
                    mend_checksum(hostile)
                    frames_target(bytes(hostile))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
