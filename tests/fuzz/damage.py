"""Damages valid samples at random and reads them: ``python -m tests.fuzz.damage 20000``.

A case depends on its number alone, so one that fails can be run again. Prints, as JSON, how many
cases were accepted, and by how many bytes the process grew at most.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from tests.fuzz.make_corpus import frames, payloads
from tests.fuzz.readers import TARGETS
from thinwire import _native

HOSTILE = (0, 1, 0x7F, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
_CRC_AT, _HEADER_END = 1 + 36, 1 + 40  # in a sample, whose first byte says what it is


@dataclass(frozen=True)
class Sample:
    target: str
    data: bytes
    fixed: int
    """How many bytes at the front say what the sample is, and are left alone."""


def samples() -> list[Sample]:
    found = [Sample("frames", data, 1 + data[0] % 2) for data in frames().values()]
    return found + [Sample("payloads", data, 3) for data in payloads().values()]


def flip(data: bytearray, other: bytes, chance: Generator) -> None:
    for _ in range(int(chance.integers(1, 4))):
        if data:
            data[int(chance.integers(len(data)))] ^= 1 << int(chance.integers(8))


def cut(data: bytearray, other: bytes, chance: Generator) -> None:
    del data[int(chance.integers(len(data) + 1)) :]


def extend(data: bytearray, other: bytes, chance: Generator) -> None:
    data += chance.bytes(int(chance.integers(1, 9)))


def splice(data: bytearray, other: bytes, chance: Generator) -> None:
    data[int(chance.integers(len(data) + 1)) :] = other[int(chance.integers(len(other) + 1)) :]


def claim(data: bytearray, other: bytes, chance: Generator) -> None:
    """A hostile length somewhere, most often where lengths are: at the front."""
    room = len(data) - 4
    if room >= 0:
        place = int(chance.integers(min(room, 56) + 1))
        struct.pack_into("<I", data, place, HOSTILE[int(chance.integers(len(HOSTILE)))])


DAMAGES = (flip, cut, extend, splice, claim)


def case(number: int, all_samples: list[Sample]) -> tuple[str, bytes]:
    """The target and the bytes of a case."""
    chance = np.random.default_rng(number)
    sample, other = (all_samples[int(i)] for i in chance.integers(len(all_samples), size=2))
    rest = bytearray(sample.data[sample.fixed :])
    for _ in range(int(chance.integers(1, 3))):
        damage = DAMAGES[int(chance.integers(len(DAMAGES)))]
        damage(rest, other.data[other.fixed :], chance)
    data = bytearray(sample.data[: sample.fixed]) + rest
    if sample.target == "frames" and data[0] == 0 and len(data) >= _HEADER_END and number % 2:
        mend_checksum(data)
    return sample.target, bytes(data)


def mend_checksum(data: bytearray) -> None:
    """So that what is behind the checksum is reached too."""
    checksum = _native.crc32c(data[_HEADER_END:], _native.crc32c(data[1:_CRC_AT]))
    struct.pack_into("<I", data, _CRC_AT, checksum)


def run(first: int, count: int) -> dict[str, int]:
    """Read that many damaged samples; raise, and name the case, if a reader misbehaves."""
    all_samples = samples()
    for sample in all_samples:
        assert TARGETS[sample.target](sample.data), "an undamaged sample is refused"
    before, accepted = peak_nbytes(), 0
    for number in range(first, first + count):
        target, data = case(number, all_samples)
        try:
            accepted += TARGETS[target](data)
        except BaseException as error:
            error.add_note(f"case {number}, {target}: {data.hex()}")
            raise
    return {"accepted": accepted, "grown_nbytes": peak_nbytes() - before}


def peak_nbytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(json.dumps(run(0, int(sys.argv[1]))))
