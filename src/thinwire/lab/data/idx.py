"""The idx format of MNIST and its relatives, for unsigned bytes: strict, and nothing else.

Big-endian: u16 zero, u8 type (8: unsigned byte), u8 number of dimensions, u32 per dimension, then
the elements, the last dimension fastest. Each file is gzipped.
"""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import ThinwireError

UNSIGNED_BYTE = 8


def read_idx(compressed: bytes, shape: tuple[int, ...], *, name: str) -> Tensor:
    """The elements as a uint8 tensor; ``name`` is for errors. Any other shape is refused."""
    header = struct.pack(f">HBB{len(shape)}I", 0, UNSIGNED_BYTE, len(shape), *shape)
    content = _unzipped(compressed, len(header) + math.prod(shape), name)
    if content[:4] != header[:4]:
        raise ThinwireError(
            f"{name}: magic number {content[:4].hex()}, expected {header[:4].hex()}"
        )
    if content[4 : len(header)] != header[4:]:
        found = struct.unpack(f">{len(shape)}I", content[4 : len(header)])
        raise ThinwireError(f"{name}: dimensions {found}, expected {shape}")
    elements = np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)
    return torch.from_numpy(elements.copy())  # the tensor owns its memory, and may be written


def _unzipped(compressed: bytes, nbytes: int, name: str) -> bytes:
    """Exactly ``nbytes``: a file that would unpack to more is not unpacked to its end."""
    try:
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        content = unpacker.decompress(compressed, nbytes + 1)
    except zlib.error as error:
        raise ThinwireError(f"{name}: not a gzip file ({error})") from error
    if len(content) != nbytes:
        found = "more" if len(content) > nbytes else str(len(content))
        raise ThinwireError(f"{name}: {found} bytes after unpacking, expected {nbytes}")
    if not unpacker.eof or unpacker.unused_data:
        raise ThinwireError(f"{name}: the gzip file is cut off, or something follows it")
    return content
