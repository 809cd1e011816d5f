"""``read_corpus``: the source of Python's standard library as text. Downloads nothing."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import ConfigError, ThinwireError

VOCABULARY = 128
"""Files that are not plain ASCII are left out, so a character is a number below this."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Two texts, one number per character (int64). Nothing is trained on ``held_out``."""

    training: Tensor
    held_out: Tensor


def read_corpus(
    folder: Path | None = None, *, max_nbytes: int = 4 << 20, held_out: float = 0.1
) -> Corpus:
    """The first ``max_nbytes`` of the source files in ``folder`` (None: the standard library's).

    The last part of them, the fraction ``held_out``, is kept for testing. The same Python gives the
    same corpus.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    text = b"".join(_files(folder, max_nbytes))
    if not text:
        raise ThinwireError(
            f"no Python source files in {folder}: this Python comes without the source of its "
            "standard library; use one that has it"
        )
    characters = torch.from_numpy(np.frombuffer(text, np.uint8).astype(np.int64))
    cut = round(len(text) * (1 - held_out))
    return Corpus(characters[:cut], characters[cut:])


def _files(folder: Path, max_nbytes: int) -> Iterator[bytes]:
    """The files in the order of their names, the last one cut where ``max_nbytes`` are reached."""
    for path in sorted(folder.glob("*.py")):
        data = path.read_bytes()
        if data.isascii():
            yield data[:max_nbytes]
            max_nbytes -= min(len(data), max_nbytes)


def draw(text: Tensor, rows: int, context: int, generator: torch.Generator) -> Tensor:
    """``rows`` random stretches of ``context + 1`` characters: inputs, and one to predict."""
    if text.numel() <= context:
        raise ConfigError(f"text of {text.numel()} characters, expected more than {context}")
    starts = torch.randint(text.numel() - context, (rows, 1), generator=generator)
    return text[starts + torch.arange(context + 1)]
