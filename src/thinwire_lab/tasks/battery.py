"""``battery_tasks``: five networks with four optimizers each, for ``reproduce optimizers``.

There is one rate for each network and optimizer, chosen by dense training alone: compressed runs
have to do with it. All rise in the first twentieth and fall along a cosine.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_lab.data.text import VOCABULARY
from thinwire_lab.models.bert import BERTSettings
from thinwire_lab.models.convolutional import CNNSettings, ResNetSettings
from thinwire_lab.models.gpt import GPTSettings
from thinwire_lab.models.lstm import LSTMSettings
from thinwire_lab.tasks.base import Architecture, Feed, Task, Training
from thinwire_lab.tasks.language import StreamFeed
from thinwire_lab.tasks.masked import MaskedFeed
from thinwire_lab.tasks.optimizers import (
    AdamWSettings,
    Cosine,
    LANSSettings,
    OptimizerSettings,
    SGDSettings,
)
from thinwire_lab.tasks.ours import CharacterFeed
from thinwire_lab.tasks.pictures import CifarFeed, FashionFeed

OPTIMIZERS: dict[str, OptimizerSettings] = {
    "sgd": SGDSettings(),
    "momentum": SGDSettings(momentum=0.9),
    "adamw": AdamWSettings(),
    "lans": LANSSettings(),
}

RATES = {
    "gpt": {"sgd": 2.0, "momentum": 0.3, "adamw": 3e-3, "lans": 0.01},
    "fashion": {"sgd": 0.1, "momentum": 0.05, "adamw": 2e-3, "lans": 0.01},
    "penn": {"sgd": 20.0, "momentum": 2.0, "adamw": 3e-3, "lans": 0.01},
    "cifar": {"sgd": 0.1, "momentum": 0.05, "adamw": 3e-3, "lans": 0.01},
    "masked": {"sgd": 1.0, "momentum": 0.3, "adamw": 3e-3, "lans": 0.006},
}

_CLIP_NORMS = {"penn": 0.25}
"""With SGD, as in PyTorch's example "word_language_model". Others need none."""


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
            RATES[network][optimizer],
            settings,
            Cosine(),
            rise_epochs=self.epochs / 20,
            clip_norm=_CLIP_NORMS.get(network) if isinstance(settings, SGDSettings) else None,
            evaluations_per_epoch=self.evaluations_per_epoch,
        )
        name = f"{network}-{optimizer}"
        return Task(name, scale, self.about, self.model, self.feed, training)


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
