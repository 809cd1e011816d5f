"""Memory for payloads: new, or a slab that is handed out once."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

import thinwire as tw
from thinwire.codec.arena import HEAP, Slab, Write, encode
from thinwire.codec.base import Payload
from thinwire.testing.tensors import make


def written(text: bytes) -> Write:
    def write(out: memoryview) -> int:
        out[: len(text)] = text
        return len(text)

    return write


def test_payloads_follow_each_other_in_a_slab() -> None:
    memory = bytearray(30)
    slab = Slab(memoryview(memory))
    for text in (b"one", b"", b"three"):
        assert bytes(slab.fill(20, written(text))) == text
    assert memory.startswith(b"onethree\0")


def test_a_slab_refuses_what_it_has_no_room_for() -> None:
    slab = Slab(memoryview(bytearray(10)))
    with pytest.raises(ValueError, match="at most 11 bytes, but 10 are left"):
        slab.fill(11, lambda out: len(out))
    assert len(slab.fill(10, lambda out: len(out))) == 10


def test_a_payload_that_fails_takes_no_room() -> None:
    slab = Slab(memoryview(bytearray(16)))
    with pytest.raises(tw.NonFiniteError):
        encode(tw.Float16(), torch.full((8,), float("inf")), slab, seed=0)
    assert len(slab.fill(16, lambda out: len(out))) == 16


def test_new_memory_is_cut_to_the_payload() -> None:
    payload = HEAP.fill(1 << 20, written(b"short"))
    assert payload == b"short"
    payload += b"er"  # nobody holds a view of it


class Plain:
    """A codec of somebody else, who never heard of slabs."""

    name: ClassVar[str] = "plain"
    wire_id: ClassVar[int] = 0x8009
    sparse: ClassVar[bool] = False

    def encode(self, x: torch.Tensor, *, seed: int) -> bytearray:
        return bytearray(x.numpy().tobytes())

    @staticmethod
    def decode(payload: Payload, out: torch.Tensor) -> None:
        tw.Float32.decode(payload, out)

    def max_nbytes(self, numel: int) -> int:
        return 4 * numel


def test_a_codec_that_cannot_write_allocates() -> None:
    x = make("normal", 100, seed=1)
    worker = tw.Compressor(Plain(), tw.Residual())
    piece = tw.Piece.whole(tw.Key("w", (100,)))
    sent = worker.compress_piece(piece, x, step=0, arena=Slab(memoryview(bytearray())))
    assert bytes(sent.payload) == x.numpy().tobytes()
    assert not worker.state_dict()["w"]["residual"].any()
