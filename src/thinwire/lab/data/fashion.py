"""Fashion-MNIST: small grey pictures of ten kinds of clothes."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from thinwire.errors import ThinwireError
from thinwire.lab.data.files import Source
from thinwire.lab.data.idx import read_idx
from thinwire.lab.data.pictures import Pictures, PictureSet

SIDE = 28
CLASSES = 10
MEAN, DEVIATION = 0.2860, 0.3530
"""Of all training pixels, from 0 to 1."""

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
    """60,000 pictures to train on and 10,000 to test with: float32, standardised, (n, 1, 28, 28).

    From the subfolder "fashion-mnist" of ``data`` (None: of $THINWIRE_DATA).
    ThinwireError where a file is missing (it says which to put where) or damaged.
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
