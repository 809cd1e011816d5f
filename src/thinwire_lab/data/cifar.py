"""``read_cifar``: CIFAR-10 in its binary form, colour pictures of 32 by 32 in ten classes.

A file is 10,000 records of 3,073 bytes: the label, then red, green and blue, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import ThinwireError
from thinwire_lab.data.files import Pictures, PictureSet, Source

CHANNELS, SIDE, CLASSES = 3, 32, 10
PICTURE_NBYTES = CHANNELS * SIDE * SIDE
FILE_PICTURES = 10_000
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""By colour, over all training pixels, from 0 to 1."""

TRAINING = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"

SOURCE = Source(
    "cifar-10-batches-bin",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)


def read_cifar(data: Path | None = None) -> PictureSet:
    """50,000 training and 10,000 test pictures, as bytes to save memory (see ``standardised``).

    From the subfolder "cifar-10-batches-bin" of ``data`` (None: of $THINWIRE_DATA). ThinwireError
    if a file is missing (with what to download) or damaged.
    """
    files = SOURCE.read(data)
    pictures = {name: read_batch(content, name=name) for name, content in files.items()}
    return PictureSet(_joined([pictures[name] for name in TRAINING]), pictures[TEST])


def read_batch(content: bytes, *, name: str, count: int = FILE_PICTURES) -> Pictures:
    """The ``count`` pictures of one file, uint8; ``name`` is for errors."""
    expected = count * (1 + PICTURE_NBYTES)
    if len(content) != expected:
        raise ThinwireError(f"{name}: {len(content)} bytes, expected {expected}")
    records = np.frombuffer(content, np.uint8).reshape(count, 1 + PICTURE_NBYTES)
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    if int(labels.max()) >= CLASSES:
        raise ThinwireError(f"{name}: label {int(labels.max())}, expected 0 to {CLASSES - 1}")
    pixels = records[:, 1:].reshape(count, CHANNELS, SIDE, SIDE)
    return Pictures(torch.from_numpy(pixels.copy()), labels)


def standardised(pixels: Tensor) -> Tensor:
    """Bytes as float32, of mean 0 and deviation 1 in every colour."""
    mean, deviation = (torch.tensor(x).view(CHANNELS, 1, 1) for x in (MEAN, DEVIATION))
    return pixels.float().div_(255).sub_(mean).div_(deviation)


def _joined(parts: Sequence[Pictures]) -> Pictures:
    pixels = torch.cat([part.pixels for part in parts])
    return Pictures(pixels, torch.cat([part.labels for part in parts]))
