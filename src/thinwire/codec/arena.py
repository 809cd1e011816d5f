"""``Arena``: where payloads are written, new memory for each or a slab that is allocated once.

The owner of a slab decides how long its payloads live.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol, cast

from torch import Tensor

from thinwire import _native
from thinwire.codec.base import Codec, Payload, Writing

Write = Callable[[memoryview], int]
"""Writes a payload to the front of the memory it is given, and returns its nbytes."""


class Arena(Protocol):
    """Gives memory to payloads."""

    def fill(self, most_nbytes: int, write: Write) -> Payload:
        """Have a payload of at most ``most_nbytes`` written. One that fails takes no memory."""


class Heap:
    """New memory for every payload, which lives as long as there are references to it."""

    def fill(self, most_nbytes: int, write: Write) -> bytearray:
        payload = _native.empty_bytearray(most_nbytes)
        with memoryview(payload) as out:
            nbytes = write(out)
        del payload[nbytes:]
        return payload


HEAP = Heap()


class Slab:
    """Payloads one after the other in ``memory``, whose bytes are written again by the next user.

    Enough memory for all of them is the sum of their ``most_nbytes``; only what is written is
    touched.
    """

    def __init__(self, memory: memoryview) -> None:
        self._rest = memory

    def fill(self, most_nbytes: int, write: Write) -> memoryview:
        if most_nbytes > len(self._rest):
            raise ValueError(
                f"slab: a payload of at most {most_nbytes} bytes, but {len(self._rest)} are left"
            )
        nbytes = write(self._rest[:most_nbytes])
        payload, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        return payload


def encode(codec: Codec, x: Tensor, arena: Arena, *, seed: int) -> Payload:
    """The payload for ``x``, in ``arena`` if the codec can write it there."""
    if not _writes(type(codec)):
        return codec.encode(x, seed=seed)
    writing = cast(Writing, codec)
    return arena.fill(
        codec.max_nbytes(x.numel()), lambda out: writing.encode_into(x, out, seed=seed)
    )


@cache  # asking takes longer than to encode a small tensor
def _writes(codec_class: type[Codec]) -> bool:
    return issubclass(codec_class, Writing)


def encode_anew(codec: Writing, x: Tensor, *, seed: int) -> bytearray:
    """What ``Codec.encode`` is for a codec that can write its payload."""
    return HEAP.fill(codec.max_nbytes(x.numel()), lambda out: codec.encode_into(x, out, seed=seed))
