"""``Source``: the files of a data set in the user's folder, with checksums; ``Pictures`` in them.

Downloads nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from thinwire.errors import ConfigError, ThinwireError

VARIABLE = "THINWIRE_DATA"
"""The environment variable with the default folder of data sets."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a data set is published, and the MD5 of each file, as published there.

    The files are expected in the subfolder ``name`` of the folder of all data sets.
    """

    name: str
    url: str
    md5: Mapping[str, str]

    def read(self, data: Path | None = None) -> dict[str, bytes]:
        """All files by name, checked. ``data`` is the folder of all data sets (None: the one that
        $THINWIRE_DATA names)."""
        folder = self.folder(data)
        missing = [name for name in self.md5 if not (folder / name).is_file()]
        if missing:
            raise ThinwireError(f"put {', '.join(missing)} from {self.url} into {folder}")
        return {name: _checked(folder / name, md5) for name, md5 in self.md5.items()}

    def folder(self, data: Path | None = None) -> Path:
        """Where the files are expected, in ``data`` or in the folder that $THINWIRE_DATA names."""
        if data is None and not os.environ.get(VARIABLE):
            raise ConfigError(
                f"no folder of data sets is given: put {', '.join(self.md5)} from {self.url} into "
                f"a folder DIR/{self.name}, and give --data DIR, or set ${VARIABLE} to DIR"
            )
        return (data or Path(os.environ[VARIABLE])) / self.name


def _checked(path: Path, md5: str) -> bytes:
    content = path.read_bytes()
    actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if actual != md5:
        raise ThinwireError(f"{path} is damaged or another file: md5 {actual}, expected {md5}")
    return content


@dataclass(frozen=True, slots=True)
class Pictures:
    """``pixels`` are (n, channels, height, width); ``labels`` are (n,), int64."""

    pixels: Tensor
    labels: Tensor

    def draw(self, rows: int, generator: torch.Generator) -> Pictures:
        """``rows`` random ones, with replacement."""
        return self.choose(torch.randint(self.labels.numel(), (rows,), generator=generator))

    def choose(self, numbers: Tensor | slice) -> Pictures:
        return Pictures(self.pixels[numbers], self.labels[numbers])


@dataclass(frozen=True, slots=True)
class PictureSet:
    """Pictures for training, and others for test."""

    training: Pictures
    test: Pictures
