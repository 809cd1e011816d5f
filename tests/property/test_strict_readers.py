"""Whatever bytes arrive, a reader gives a tensor or the named error; no tensor has two payloads.

Which coding to use is the encoder's choice (docs/wire-format.md); given that, there is one payload.
"""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import assume, given, strategies as st

import thinwire as tw
from tests.cases import CODECS, laws, same_bits
from thinwire.codec import registry
from thinwire.codec.base import Codec, Summing
from thinwire.testing.tensors import make

LOSSY_OR_STRICT = [codec for codec in CODECS if not isinstance(codec, tw.Float32)]


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    """``payload`` with a bit flipped, or a part cut, doubled, reversed or replaced."""
    data = bytearray(payload)
    place = draw(st.integers(0, len(data)))
    nbytes = draw(st.integers(0, 8))
    match draw(st.sampled_from(["flip", "cut", "double", "swap", "replace", "small number"])):
        case "flip" if data:
            bit = draw(st.integers(0, 8 * len(data) - 1))
            data[bit // 8] ^= 1 << bit % 8
        case "cut":
            del data[place : place + nbytes]
        case "double":
            data[place:place] = data[place : place + nbytes]
        case "swap":
            data[place : place + nbytes] = reversed(data[place : place + nbytes])
        case "replace":
            data[place : place + nbytes] = draw(st.binary(max_size=8))
        case "small number" if len(data) >= 4:
            place = draw(st.integers(0, min(12, len(data) - 4)))
            struct.pack_into("<i", data, place, draw(st.integers(-2, 1000)))
    return bytes(data)


def read(codec: Codec, payload: bytes, numel: int) -> torch.Tensor | None:
    """The tensor, or None if it is refused. Any other error passes through and fails the test."""
    out = torch.full((numel,), float("nan"))
    try:
        registry.decode(codec.wire_id, payload, out)
    except tw.CorruptPayloadError:
        return None
    return out


@pytest.mark.parametrize("codec", LOSSY_OR_STRICT, ids=repr)
@laws
@given(data=st.data())
def test_damaged_payloads_are_refused_or_tensors(codec: Codec, data: st.DataObject) -> None:
    numel = data.draw(st.integers(0, 200))
    kind = data.draw(st.sampled_from(["normal", "row-sparse", "one-hot", "zero"]))
    payload = bytes(codec.encode(make(kind, numel, seed=numel), seed=5))
    hostile = data.draw(damaged(payload))
    out = read(codec, hostile, numel)
    total = torch.ones(numel)
    if out is None:
        with pytest.raises(tw.CorruptPayloadError):
            registry.add(codec.wire_id, hostile, total, weight=2.0)
        assert torch.equal(total, torch.ones(numel))
        with pytest.raises(tw.CorruptPayloadError):
            registry.sum_up(codec.wire_id, [payload, hostile], total, weight=2.0)
        assert torch.equal(total, torch.ones(numel)) or not isinstance(codec, Summing)
    else:
        assert bool(out.isfinite().all())
        registry.add(codec.wire_id, hostile, total, weight=2.0)
        assert torch.equal(total, 1 + 2 * out)
        registry.sum_up(codec.wire_id, [hostile, hostile], total, weight=2.0)
        assert torch.equal(total, 2 * out + 2 * out)


def codings(codec: Codec, payload: bytes) -> bytes:
    """The part of a payload that says how the rest is coded."""
    match codec:
        case tw.OneBit():
            return payload[:4]  # block
        case tw.TopK() | tw.Nonzero():
            return payload[4:6]
        case tw.ChunkTopK():
            return payload[8:9]  # bits
        case tw.RandomK():
            return payload[:12]  # seed and count
        case tw.Dither():
            return payload[:8]  # neighbouring scales may have the same steps
    return b""


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@laws
@given(data=st.data())
def test_no_tensor_has_two_payloads(codec: Codec, data: st.DataObject) -> None:
    numel = data.draw(st.integers(1, 200))
    payload = bytes(codec.encode(make("normal", numel, seed=numel), seed=5))
    other = data.draw(damaged(payload))
    assume(other != payload and codings(codec, other) == codings(codec, payload))
    expected, found = read(codec, payload, numel), read(codec, other, numel)
    assert expected is not None
    assert found is None or not same_bits(found, expected)


@pytest.mark.parametrize(
    ("codec", "numel", "offset"), [(tw.OneBit(block=64), 128, 12), (tw.Dither(4), 0, 0)], ids=repr
)
def test_a_scale_that_decides_nothing_is_zero(codec: Codec, numel: int, offset: int) -> None:
    """OneBit: of a block that holds only runs of zeros. Dither: of a tensor without elements."""
    x = torch.cat([torch.ones(64), torch.zeros(64)])[:numel]
    payload = codec.encode(x, seed=0)
    assert struct.unpack_from("<f", payload, offset) == (0.0,)
    struct.pack_into("<f", payload, offset, 1.0)
    assert read(codec, bytes(payload), numel) is None


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_the_wrong_number_of_elements_is_refused_or_means_something(codec: Codec) -> None:
    payload = bytes(codec.encode(make("normal", 100, seed=1), seed=5))
    for numel in (0, 1, 36, 63, 64, 96, 99, 101, 104, 128, 10_000):
        out = read(codec, payload, numel)
        assert out is None or bool(out.isfinite().all())
    assert (
        read(codec, payload, 99) is None or codec.sparse or isinstance(codec, tw.Dither | tw.OneBit)
    )
