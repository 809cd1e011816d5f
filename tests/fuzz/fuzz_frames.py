"""Coverage-guided fuzzing of every reader of frames: see scripts/fuzz. Needs atheris."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped]  # it has no types

sys.path.insert(0, str(Path(__file__).parents[2]))  # started as a file, not as a module

from tests.fuzz.instrument import instrument
from tests.fuzz.readers import frames_target


def test_one_input(data: bytes) -> None:
    frames_target(data)


if __name__ == "__main__":
    instrument("thinwire", atheris.instrument_func)
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
