"""Buffers are allocated once."""

from __future__ import annotations

import pytest

from thinwire.exchange.link import Buffers


@pytest.mark.parametrize("nbytes", [0, 1, 2, 3, 4095, 4096, 4097, 5 << 20])
def test_a_buffer_has_room_and_is_used_again(nbytes: int) -> None:
    buffers = Buffers()
    first, second = buffers.take(nbytes), buffers.take(nbytes)
    assert first.numel() >= nbytes
    assert first.data_ptr() != second.data_ptr()
    buffers.give(first)
    assert buffers.take(nbytes).data_ptr() == first.data_ptr()
