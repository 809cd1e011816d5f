"""CRC32C one bit at a time, as its definition reads: the oracle for the native one."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78  # Castagnoli's 0x1EDC6F41, bits reversed


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """CRC32C of ``data``, continuing from ``crc``: crc32c(b, crc32c(a)) == crc32c(a + b)."""
    crc ^= 0xFFFFFFFF
    for byte in bytes(data):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
