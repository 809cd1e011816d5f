"""``our_tasks`` and ``battery_tasks``: tasks that are in no paper, for an ordinary machine.

``our_tasks`` take a minute or an hour. ``battery_tasks`` are five networks with four optimizers
each, for ``reproduce optimizers``. There is one rate for each network and optimizer, chosen by
dense training alone: compressed runs have to do with it. All rise in the first twentieth and fall
along a cosine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from thinwire.checks import check_whole
from thinwire_lab.data.text import VOCABULARY, Corpus, draw, read_corpus
from thinwire_lab.models.convolutional import CNNSettings, ResNetSettings
from thinwire_lab.models.language import BERTSettings, GPTSettings, LSTMSettings, next_token_loss
from thinwire_lab.seeding import generator_from, seeded
from thinwire_lab.tasks.base import (
    Architecture,
    Feed,
    Memory,
    Score,
    Task,
    Training,
    in_parts,
    perplexity,
)
from thinwire_lab.tasks.language import StreamFeed
from thinwire_lab.tasks.masked import MaskedFeed
from thinwire_lab.tasks.optimizers import (
    AdamWSettings,
    Constant,
    Cosine,
    LANSSettings,
    Line,
    OptimizerSettings,
    SGDSettings,
)
from thinwire_lab.tasks.pictures import CifarFeed, FashionFeed

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


OPTIMIZERS: dict[str, OptimizerSettings] = {
    "sgd": SGDSettings(),
    "momentum": SGDSettings(momentum=0.9),
    "adamw": AdamWSettings(),
    "lans": LANSSettings(),
}

RATES = {
    "gpt": {"sgd": 0.5, "momentum": 0.3, "adamw": 3e-3, "lans": 0.03},
    "fashion": {"sgd": 0.1, "momentum": 0.05, "adamw": 3e-3, "lans": 0.01},
    "penn": {"sgd": 20.0, "momentum": 4.0, "adamw": 3e-3, "lans": 0.03},
    "cifar": {"sgd": 1.0, "momentum": 0.05, "adamw": 3e-3, "lans": 0.01},
    "masked": {"sgd": 0.3, "momentum": 0.3, "adamw": 3e-3, "lans": 0.02},
}
"""Usual rates: fashion with SGD, gpt with AdamW, penn with SGD. Of others, the one with the lowest
held-out loss in short dense runs with seed 100 (468 steps of fashion, 200 of gpt, 400 of cifar, 600
of masked, 500 of penn), of these:

gpt         sgd 0.1 0.2 0.5 (1 diverges), momentum 0.1 0.3 (0.6 diverges), lans 0.003 0.01 0.03
fashion     adamw 0.001 0.003, lans 0.003 0.01 0.03 (of lans whole runs: 0.03 is best in short ones,
            and then goes up again)
penn        momentum 2 4, adamw 0.003 0.01, lans 0.01 0.03
cifar       sgd 0.1 0.3 1, momentum 0.02 0.05 0.1, adamw 0.001 0.003 0.01, lans 0.003 0.01 0.03
masked      sgd 0.3 (1 diverges), momentum 0.1 0.3 (1 diverges), adamw 0.001 0.003 0.01,
            lans 0.006 0.02
"""

LOCAL = "local-gpt"
"""The network of ``local_tasks``."""

_CLIP_NORMS = {"penn": 0.25}
"""With SGD, as in PyTorch's example "word_language_model". Others need none."""


def local_tasks() -> tuple[Task, ...]:
    """For ``reproduce local``: the GPT with more rows for each worker, so that steps alone are
    worth something."""
    return tuple(
        setup.task(LOCAL, "adamw", scale) for scale, setup in (("smoke", _ALONE), ("small", _LOCAL))
    )


def battery_tasks() -> tuple[Task, ...]:
    return tuple(
        setup.task(network, optimizer, scale)
        for scale, setups in (("smoke", _SMOKE), ("small", _SMALL))
        for network, setup in setups.items()
        for optimizer in OPTIMIZERS
    )


@dataclass(frozen=True, slots=True)
class _Setup:
    """What all optimizers of a network have in common."""

    about: str
    model: Architecture
    feed: Feed
    epochs: float
    evaluations_per_epoch: int = 1

    def task(self, network: str, optimizer: str, scale: str) -> Task:
        settings = OPTIMIZERS[optimizer]
        training = Training(
            self.epochs,
            RATES["gpt" if network == LOCAL else network][optimizer],
            settings,
            Cosine(),
            rise_epochs=self.epochs / 20,
            clip_norm=_CLIP_NORMS.get(network) if isinstance(settings, SGDSettings) else None,
            evaluations_per_epoch=self.evaluations_per_epoch,
        )
        name = f"{network}-{optimizer}"
        return Task(name, scale, self.about, self.model, self.feed, training)


_ALONE = _Setup(
    "one layer, 4 rows",
    GPTSettings(VOCABULARY, context=16, layers=1, heads=2, width=32),
    CharacterFeed(4, 16, max_nbytes=200_000, epoch_steps=10, held_out_rows=64),
    epochs=2,
)
_LOCAL = _Setup(
    "the demo's GPT, 16 rows, 900 steps",
    GPTSettings(VOCABULARY),
    CharacterFeed(16, 64, epoch_steps=100),
    epochs=9,
)

_SMOKE = {
    "gpt": _Setup(
        "one layer",
        GPTSettings(VOCABULARY, context=16, layers=1, heads=2, width=32),
        CharacterFeed(4, 16, max_nbytes=200_000, epoch_steps=10, held_out_rows=64),
        epochs=2,
    ),
    "fashion": _Setup(
        "512 pictures", CNNSettings(), FashionFeed(8, training_rows=512, test_rows=200), epochs=1
    ),
    "penn": _Setup(
        "2x16 and 20,000 words",
        LSTMSettings(width=16),
        StreamFeed(5, 10, training_words=20_000, test_words=2_000),
        epochs=0.2,
    ),
    "cifar": _Setup(
        "4 channels and 512 pictures",
        ResNetSettings(8, width=4),
        CifarFeed(8, training_rows=512, test_rows=200),
        epochs=1,
    ),
    "masked": _Setup(
        "one layer of 16",
        BERTSettings(context=16, layers=1, heads=2, width=16),
        MaskedFeed(4, 16, training_words=20_000, test_words=2_000),
        epochs=0.2,
    ),
}

_SMALL = {
    "gpt": _Setup(
        "the demo's GPT, 4 rows, 1,500 steps", GPTSettings(VOCABULARY), CharacterFeed(4, 64), 6
    ),
    "fashion": _Setup("32 channels, 32 pictures", CNNSettings(32), FashionFeed(32), epochs=5),
    "penn": _Setup(
        "2x64, not tied, so that most rows of the embedding are rare; 1 epoch",
        LSTMSettings(width=64),
        StreamFeed(5, 20),
        epochs=1,
        evaluations_per_epoch=4,
    ),
    "cifar": _Setup(
        "ResNet-8, 20,000 pictures, batch 8",
        ResNetSettings(8),
        CifarFeed(8, training_rows=20_000, test_rows=5_000),
        epochs=4,
    ),
    "masked": _Setup(
        "one layer of 64, batch 4, 2 epochs",
        BERTSettings(context=32, layers=1, heads=2, width=64),
        MaskedFeed(4, 32),
        epochs=2,
        evaluations_per_epoch=2,
    ),
}
