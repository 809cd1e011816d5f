"""Source code to be continued character by character. It needs no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from thinwire.lab.chance import generator_from, seeded
from thinwire.lab.gpt import next_token_loss
from thinwire.lab.tasks.base import Memory, Score, in_parts, perplexity
from thinwire.lab.text import Corpus, draw, read_corpus
from thinwire.settings import check_whole

SCORED_ROWS = 256


@dataclass(frozen=True, slots=True)
class CharacterFeed:
    """``rows`` stretches of ``context`` characters for each worker and step, from anywhere in the
    first ``max_nbytes`` of the source of Python's standard library. So many steps are called an
    epoch."""

    rows: int
    context: int
    max_nbytes: int = 4 << 20
    epoch_steps: int = 250
    held_out_rows: int = 1024
    needs: ClassVar[str] = ""

    def open(self, data: Path | None, *, workers: int, seed: int) -> CharacterWork:
        del data, workers  # the text is everywhere, and every worker draws from all of it
        return CharacterWork(read_corpus(max_nbytes=self.max_nbytes), self, seed)


class CharacterWork:
    """See ``Work``."""

    def __init__(self, corpus: Corpus, feed: CharacterFeed, seed: int) -> None:
        check_whole(feed.rows, least=1, owner="characters", field="rows")
        check_whole(feed.epoch_steps, least=1, owner="characters", field="epoch_steps")
        self._corpus, self._feed, self._seed = corpus, feed, seed
        self.epoch_steps = feed.epoch_steps

    def loss(self, net: nn.Module, *, step: int, worker: int, memory: Memory) -> Tensor:
        generator = generator_from(self._seed, 0, step, worker)
        rows = draw(self._corpus.training, self._feed.rows, self._feed.context, generator)
        with seeded(self._seed, 1, step, worker):
            return next_token_loss(net, rows)

    def validate(self, net: nn.Module) -> Score:
        return self.test(net)

    def test(self, net: nn.Module) -> Score:
        feed, total = self._feed, 0.0
        rows = draw(self._corpus.held_out, feed.held_out_rows, feed.context, generator_from(0))
        for some in in_parts(rows, SCORED_ROWS):
            total += float(next_token_loss(net, some)) * len(some)
        return perplexity(total / len(rows))
