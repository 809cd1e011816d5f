"""``our_tasks``: tasks that are in no paper, for a minute or an hour on an ordinary machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from thinwire.checks import check_whole
from thinwire_lab.data.text import VOCABULARY, Corpus, draw, read_corpus
from thinwire_lab.models.convolutional import CNNSettings
from thinwire_lab.models.gpt import GPTSettings, next_token_loss
from thinwire_lab.seeding import generator_from, seeded
from thinwire_lab.tasks.base import Memory, Score, Task, Training, in_parts, perplexity
from thinwire_lab.tasks.optimizers import AdamWSettings, Constant, Line, SGDSettings
from thinwire_lab.tasks.pictures import FashionFeed

SCORED_ROWS = 256


@dataclass(frozen=True, slots=True)
class CharacterFeed:
    """``rows`` stretches of ``context`` characters for each worker and step, from anywhere in the
    first ``max_nbytes`` of the source of Python's standard library."""

    rows: int
    context: int
    max_nbytes: int = 4 << 20
    epoch_steps: int = 250
    held_out_rows: int = 1024
    needs: ClassVar[str] = ""

    def open(self, data: Path | None, *, workers: int, seed: int) -> CharacterWork:
        del data, workers  # every Python has the text, and every worker draws from all of it
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
        for part in in_parts(rows, SCORED_ROWS):
            total += float(next_token_loss(net, part)) * len(part)
        return perplexity(total / len(rows))


_SGD = SGDSettings(momentum=0.9)


def our_tasks() -> tuple[Task, ...]:
    return (*_fashion(), *_gpt(), _demo())


def _fashion() -> tuple[Task, ...]:
    few = FashionFeed(rows=8, training_rows=512, test_rows=200)
    smoke = Training(1, 0.02, _SGD, Line())
    small = Training(10, 0.02, _SGD, Line(), rise_epochs=0.5, sparse_epochs=1)
    return (
        Task("fashion", "smoke", "512 pictures", CNNSettings(), few, smoke),
        Task("fashion", "small", "all pictures", CNNSettings(), FashionFeed(rows=16), small),
    )


def _gpt() -> tuple[Task, ...]:
    tiny = GPTSettings(VOCABULARY, context=16, layers=1, heads=2, width=32)
    little = CharacterFeed(4, 16, max_nbytes=200_000, epoch_steps=10, held_out_rows=64)
    small = Training(8, 0.3, _SGD, Constant(), rise_epochs=0.1, sparse_epochs=1)
    return (
        Task("gpt", "smoke", "one layer", tiny, little, Training(2, 0.3, _SGD, Constant())),
        Task(
            "gpt",
            "small",
            "the demo's GPT, 2,000 steps",
            GPTSettings(VOCABULARY),
            CharacterFeed(rows=8, context=64),
            small,
        ),
    )


def _demo() -> Task:
    feed = CharacterFeed(rows=8, context=64, epoch_steps=25, held_out_rows=256)
    training = Training(10, 3e-3, AdamWSettings(), Constant(), rise_epochs=0.8)
    return Task(
        "demo", "small", "of thinwire demo: 250 steps", GPTSettings(VOCABULARY), feed, training
    )
