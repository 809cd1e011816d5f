"""Frames written by any released version are read for ever, and written the same."""

from __future__ import annotations

import pytest

from tests.golden.make_messages import FOLDER, MESSAGES, frame_of
from thinwire.wire.frame import pack, unpack
from thinwire.wire.messages import MESSAGES as CLASSES, decode


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_bytes_are_read_as_the_message_they_were(name: str) -> None:
    frame = unpack(memoryview((FOLDER / f"{name}.bin").read_bytes()))
    assert frame == frame_of(name)
    assert decode(frame) == MESSAGES[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_is_written_as_its_golden_bytes(name: str) -> None:
    assert b"".join(pack(frame_of(name))) == (FOLDER / f"{name}.bin").read_bytes()


def test_every_golden_file_is_tested() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(MESSAGES)


def test_every_message_class_has_golden_bytes() -> None:
    assert {type(message) for message in MESSAGES.values()} == set(CLASSES.values())
