"""``read_penn``: Penn Treebank with Mikolov's preprocessing, as words.

One sentence in a line, words between spaces, a vocabulary of 10,000 with "<unk>" and "N" for rare
words and numbers. Every line ends with the word "<eos>", which is not in the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import ThinwireError
from thinwire_lab.data.files import Source

END = "<eos>"
WORDS = 10_000
PARTS = ("train", "valid", "test")
URL = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz (its folder data)"

_MD5 = (
    "f26c4b92c5fdc7b3f8c7cdcb991d8420",
    "aa0affc06ff7c36e977d7cd49e3839bf",
    "8b80168b89c18661a38ef683c0dc3721",
)


def _source(prefix: str) -> Source:
    names = (f"{prefix}{part}.txt" for part in PARTS)
    return Source("ptb", URL, dict(zip(names, _MD5, strict=True)))


SOURCE = _source("ptb.")
"""As published. Copies that name the same files train.txt and so on are accepted, too."""

PLAIN_SOURCE = _source("")


@dataclass(frozen=True, slots=True)
class Words:
    """Three texts, one number per word (int64), and the word of each number."""

    vocabulary: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor

    def first(self, training: int | None, held_out: int | None) -> Words:
        """Only so many words of each text (None: all)."""
        return Words(
            self.vocabulary, self.train[:training], self.valid[:held_out], self.test[:held_out]
        )


def read_penn(data: Path | None = None) -> Words:
    """929,589 words for training, 73,760 for validation, 82,430 for test.

    From the subfolder "ptb" of ``data`` (None: of $THINWIRE_DATA). ThinwireError where a file is
    missing (with what to download) or damaged.
    """
    folder = SOURCE.folder(data)
    plain = any((folder / name).is_file() for name in PLAIN_SOURCE.md5)
    files = (PLAIN_SOURCE if plain else SOURCE).read(data)
    return read_words(*(content.decode() for content in files.values()))


def read_words(train: str, valid: str, test: str) -> Words:
    """Number words in the order of ``train``; the other texts must not have other words."""
    training = _words(train)
    vocabulary = tuple(dict.fromkeys(training))
    numbers = {word: number for number, word in enumerate(vocabulary)}
    parts = zip(PARTS, (training, _words(valid), _words(test)), strict=True)
    return Words(vocabulary, *(_numbered(words, numbers, name) for name, words in parts))


def _words(text: str) -> list[str]:
    return text.replace("\n", f" {END} ").split()


def _numbered(words: list[str], numbers: dict[str, int], name: str) -> Tensor:
    try:
        array = np.fromiter((numbers[word] for word in words), np.int64, len(words))
    except KeyError as error:
        raise ThinwireError(f"{name}: the word {error} is not in the training text") from error
    return torch.from_numpy(array)
