"""Tasks of our own, in no paper: a minute or an hour on an ordinary machine."""

from __future__ import annotations

from thinwire.lab.cnn import CNNSettings
from thinwire.lab.gpt import GPTSettings
from thinwire.lab.tasks.base import Task, Training
from thinwire.lab.tasks.characters import CharacterFeed
from thinwire.lab.tasks.optimizers import LANSSettings, SGDSettings
from thinwire.lab.tasks.pictures import FashionFeed
from thinwire.lab.tasks.schedule import Constant, Line
from thinwire.lab.text import VOCABULARY

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
            "gpt-lans",
            "smoke",
            "one layer, LANS",
            tiny,
            little,
            Training(2, 0.01, LANSSettings(), Line()),
        ),
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
    training = Training(10, 0.3, _SGD, Constant(), rise_epochs=0.8)
    return Task(
        "demo", "small", "of thinwire demo: 250 steps", GPTSettings(VOCABULARY), feed, training
    )
