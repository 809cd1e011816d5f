"""``read_fashion``: Fashion-MNIST, grey pictures of 28 by 28 in ten classes."""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import ThinwireError
from thinwire_lab.data.files import Pictures, PictureSet, Source

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
        actual = struct.unpack(f">{len(shape)}I", content[4 : len(header)])
        raise ThinwireError(f"{name}: dimensions {actual}, expected {shape}")
    elements = np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)
    return torch.from_numpy(elements.copy())  # the tensor owns its memory, and may be written


def _unzipped(compressed: bytes, nbytes: int, name: str) -> bytes:
    """Exactly ``nbytes``; a larger file is refused without unpacking all of it."""
    try:
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        content = unpacker.decompress(compressed, nbytes + 1)
    except zlib.error as error:
        raise ThinwireError(f"{name}: not a gzip file ({error})") from error
    if len(content) != nbytes:
        actual = "more" if len(content) > nbytes else str(len(content))
        raise ThinwireError(f"{name}: {actual} bytes after unpacking, expected {nbytes}")
    if not unpacker.eof or unpacker.unused_data:
        raise ThinwireError(f"{name}: the gzip file is cut off, or something follows it")
    return content


SIDE = 28
CLASSES = 10
MEAN, DEVIATION = 0.2860, 0.3530
"""Over all training pixels, from 0 to 1."""

SOURCE = Source(
    "fashion-mnist",
    "https://github.com/zalandoresearch/fashion-mnist",
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)


def read_fashion(data: Path | None = None) -> PictureSet:
    """60,000 training and 10,000 test pictures: float32, standardised, (n, 1, 28, 28).

    From the subfolder "fashion-mnist" of ``data`` (None: of $THINWIRE_DATA).
    ThinwireError if a file is missing (with what to download) or damaged.
    """
    files = SOURCE.read(data)
    return PictureSet(_pictures(files, "train", 60_000), _pictures(files, "t10k", 10_000))


def _pictures(files: dict[str, bytes], part: str, count: int) -> Pictures:
    images, labels = f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"
    pixels = read_idx(files[images], (count, SIDE, SIDE), name=images)
    kinds = read_idx(files[labels], (count,), name=labels)
    if int(kinds.max()) >= CLASSES:
        raise ThinwireError(f"{labels}: label {int(kinds.max())}, expected 0 to {CLASSES - 1}")
    return Pictures(_standardised(pixels), kinds.long())


def _standardised(pixels: Tensor) -> Tensor:
    return pixels.float().div_(255).sub_(MEAN).div_(DEVIATION).unsqueeze(1)
