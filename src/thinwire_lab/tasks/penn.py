"""``penn_tasks``: tasks on Penn Treebank.

Zaremba et al. (2014) sum the loss over the window, so that their rate 1 and norm 5 are, for the
mean loss used here, rate 20 and norm 0.25 with a window of 20 words (35 and 1/7 with 35). DGC's
dense perplexity, 72.30, is that of PyTorch's example "word_language_model" with its tied 2x1500
network, so its settings are used: rate 20, divided by 4 where an epoch was not better, norm 0.25,
dropout 0.65, 40 epochs, plain SGD. All have 20 rows: 5 for each of DGC's 4 workers, and an epoch of
warm-up for the sparsity. Only the small network at small scale has one row for each, for more
steps.

CLAN trains BERT-base with LANS, rate 0.00125, decay 0.01, 2,048 rows of 128, on 3.3 billion words.
Here are a million.
"""

from __future__ import annotations

from thinwire_lab.models.language import BERTSettings, LSTMSettings
from thinwire_lab.tasks.base import Task, Training
from thinwire_lab.tasks.language import StreamFeed
from thinwire_lab.tasks.masked import MaskedFeed
from thinwire_lab.tasks.optimizers import Decay, LANSSettings, Line, Plateau, Schedule, SGDSettings

_PLAIN = SGDSettings()
_CURVE = 6
"""Evaluations per epoch where a run has less than two epochs: nine make a curve, and cost about 5 %
of the run."""

_SMOKE_NET = LSTMSettings(width=16)
_SMOKE_FEED = StreamFeed(rows=5, window=10, training_words=20_000, test_words=2_000)


def penn_tasks() -> tuple[Task, ...]:
    return (*_lstm_small(), *_lstm_medium(), *_lstm_large(), *_bert())


def _lstm(epochs: float, rate: float, clip_norm: float, schedule: Schedule) -> Training:
    return Training(
        epochs, rate, _PLAIN, schedule, clip_norm=clip_norm, sparse_epochs=min(1.0, epochs / 4)
    )


def _smoke(name: str, schedule: Schedule) -> Task:
    training = _lstm(0.2, 20.0, 0.25, schedule)
    return Task(name, "smoke", "2x16 and 20,000 words", _SMOKE_NET, _SMOKE_FEED, training)


def _lstm_small() -> tuple[Task, ...]:
    model, feed = LSTMSettings(width=200), StreamFeed(rows=5, window=20)
    paper = _lstm(13, 20.0, 0.25, Decay(after=4, by=2.0))
    narrow, lines = LSTMSettings(width=64, tied=True), StreamFeed(rows=1, window=20)
    small = Training(
        1.4,
        10.0,
        _PLAIN,
        Line(),
        clip_norm=0.25,
        sparse_epochs=0.17,
        evaluations_per_epoch=_CURVE,
    )
    return (
        _smoke("lstm-small", Decay(after=4, by=2.0)),
        Task("lstm-small", "small", "2x64 tied, batch 1, 1.4 epochs", narrow, lines, small),
        Task("lstm-small", "paper", "as Zaremba et al., small", model, feed, paper),
    )


def _lstm_medium() -> tuple[Task, ...]:
    model = LSTMSettings(width=650, dropout=0.5, spread=0.05)
    paper = _lstm(39, 35.0, 1 / 7, Decay(after=6, by=1.2))
    small = _lstm(4, 35.0, 1 / 7, Decay(after=2, by=2.0))
    feed, fewer = StreamFeed(5, 35), StreamFeed(5, 35, training_words=200_000)
    return (
        _smoke("lstm-medium", Decay(after=6, by=1.2)),
        Task("lstm-medium", "small", "200,000 words, 4 epochs of 39", model, fewer, small),
        Task("lstm-medium", "paper", "as Zaremba et al., medium", model, feed, paper),
    )


def _lstm_large() -> tuple[Task, ...]:
    model = LSTMSettings(width=1500, dropout=0.65, tied=True)
    paper, small = (_lstm(epochs, 20.0, 0.25, Plateau(by=4.0)) for epochs in (40, 2))
    feed, fewer = StreamFeed(5, 35), StreamFeed(5, 35, training_words=100_000)
    return (
        _smoke("lstm-large", Plateau(by=4.0)),
        Task("lstm-large", "small", "100,000 words, 2 epochs of 40", model, fewer, small),
        Task("lstm-large", "paper", "as DGC: 2x1500, tied", model, feed, paper),
    )


def _bert() -> tuple[Task, ...]:
    lans = LANSSettings(weight_decay=0.01, normalize_grad=False)
    tiny = BERTSettings(context=16, layers=1, heads=2, width=16)
    base = BERTSettings(context=128, layers=12, heads=12, width=768)
    few_words = MaskedFeed(rows=4, context=16, training_words=20_000, test_words=2_000)
    return (
        Task("bert", "smoke", "one layer", tiny, few_words, Training(0.2, 0.01, lans, Line())),
        Task(
            "bert",
            "small",
            "one layer of 64, batch 2, 1.5 epochs",
            BERTSettings(context=32, layers=1, heads=2, width=64),
            MaskedFeed(rows=2, context=32),
            Training(
                1.5,
                0.006,
                lans,
                Line(),
                rise_epochs=0.15,
                sparse_epochs=0.375,
                evaluations_per_epoch=_CURVE,
            ),
        ),
        Task(
            "bert",
            "paper",
            "as CLAN, but for its text: BERT-base",
            base,
            MaskedFeed(rows=512, context=128),
            Training(1000, 0.00125, lans, Line(), rise_epochs=100),
        ),
    )
