"""``MaskedFeed``: masked language modelling (Devlin et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.checks import check_whole
from thinwire.errors import ConfigError
from thinwire_lab.data import penn
from thinwire_lab.data.penn import Words
from thinwire_lab.seeding import generator_from, seeded
from thinwire_lab.tasks.base import Memory, Score, in_parts, perplexity

ASKED = 0.15
"""The fraction of words to predict. Of these 80 % are masked, 10 % replaced by any word, and 10 %
left as they are."""

SCORED_ROWS = 64


@dataclass(frozen=True, slots=True)
class MaskedFeed:
    """``rows`` of ``context`` words for each worker and step."""

    rows: int
    context: int
    training_words: int | None = None
    test_words: int | None = None
    needs: ClassVar[str] = penn.SOURCE.name

    def open(self, data: Path | None, *, workers: int, seed: int) -> MaskedWork:
        words = penn.read_penn(data).first(self.training_words, self.test_words)
        return MaskedWork(words, self.rows, self.context, workers=workers, seed=seed)


class MaskedWork:
    """See ``Work``. Rows begin anywhere; held-out rows and their masks are fixed."""

    def __init__(self, words: Words, rows: int, context: int, *, workers: int, seed: int) -> None:
        check_whole(rows, least=1, owner="masked", field="rows")
        check_whole(context, least=2, owner="masked", field="context")
        fewest = min(part.numel() for part in (words.train, words.valid, words.test))
        if fewest <= context:
            raise ConfigError(f"{fewest} words are too few for rows of {context}")
        self._words, self._rows, self._context, self._seed = words, rows, context, seed
        self.epoch_steps = max(1, words.train.numel() // (rows * context * workers))

    def loss(self, net: nn.Module, *, step: int, worker: int, memory: Memory) -> Tensor:
        generator = generator_from(self._seed, 0, step, worker)
        text = self._words.train
        starts = torch.randint(text.numel() - self._context, (self._rows, 1), generator=generator)
        rows = text[starts + torch.arange(self._context)]
        with seeded(self._seed, 1, step, worker):
            return self._loss(net, rows, generator)

    def validate(self, net: nn.Module) -> Score:
        return self._score(net, self._words.valid)

    def test(self, net: nn.Module) -> Score:
        return self._score(net, self._words.test)

    def _score(self, net: nn.Module, text: Tensor) -> Score:
        count = text.numel() // self._context
        rows = text[: count * self._context].view(count, self._context)
        generator, total = generator_from(0), 0.0
        for part in in_parts(rows, SCORED_ROWS):
            total += float(self._loss(net, part, generator)) * len(part)
        return perplexity(total / count)

    def _loss(self, net: nn.Module, rows: Tensor, generator: torch.Generator) -> Tensor:
        shown, asked = hide(rows, len(self._words.vocabulary), generator)
        return functional.cross_entropy(net(shown, asked), rows[asked])


def hide(rows: Tensor, words: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The masked rows, and which words to predict: equally many in every row, so that every batch
    has some."""
    order = torch.rand(rows.shape, generator=generator).argsort(1)
    asked = order < max(1, round(ASKED * rows.shape[1]))
    kind = torch.rand(rows.shape, generator=generator)
    others = torch.randint(words, rows.shape, generator=generator)
    shown = torch.where(asked & (kind < 0.8), torch.full_like(rows, words), rows)
    return torch.where(asked & (kind >= 0.9), others, shown), asked
