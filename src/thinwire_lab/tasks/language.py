"""``StreamFeed``: language modelling by word, in windows; each starts with the state of the last.

The text is cut into as many equal columns as there are rows on all workers. In an epoch every
worker reads its columns from beginning to end, a window in each step (truncated backpropagation).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from thinwire.checks import check_whole
from thinwire.errors import ConfigError
from thinwire_lab.data import penn
from thinwire_lab.data.penn import Words
from thinwire_lab.models.language import State
from thinwire_lab.seeding import seeded
from thinwire_lab.tasks.base import Memory, Score, perplexity

SCORED_ROWS, SCORED_WINDOW = 10, 20
"""With windows of 100 words an evaluation took 5 s instead of 2.5, for 1.4 million page faults: the
logits of 10,000 words were new memory every time. With 50 they were every other time."""


@dataclass(frozen=True, slots=True)
class StreamFeed:
    """``rows`` columns for each worker, ``window`` words of each in a step. Only the first
    ``training_words`` and ``test_words`` are used (None: all)."""

    rows: int
    window: int
    training_words: int | None = None
    test_words: int | None = None
    needs: ClassVar[str] = penn.SOURCE.name

    def open(self, data: Path | None, *, workers: int, seed: int) -> StreamWork:
        words = penn.read_penn(data).first(self.training_words, self.test_words)
        return StreamWork(words, self.rows, self.window, workers=workers, seed=seed)


class StreamWork:
    """See ``Work``. A worker's memory holds the state after its last window."""

    def __init__(self, words: Words, rows: int, window: int, *, workers: int, seed: int) -> None:
        check_whole(rows, least=1, owner="stream", field="rows")
        check_whole(window, least=1, owner="stream", field="window")
        self._words, self._rows, self._window, self._seed = words, rows, window, seed
        self._columns = columns(words.train, rows * workers)
        self.epoch_steps = (self._columns.shape[1] - 1) // window
        if not self.epoch_steps:
            raise ConfigError(
                f"{words.train.numel()} words are too few for {workers} workers with {rows} rows "
                f"of {window}"
            )

    def loss(self, net: nn.Module, *, step: int, worker: int, memory: Memory) -> Tensor:
        place = step % self.epoch_steps
        if not place:
            memory.clear()
        text = self._columns[worker * self._rows : (worker + 1) * self._rows]
        start = place * self._window
        with seeded(self._seed, step, worker):
            loss, state = _read(net, text[:, start : start + self._window + 1], _state(memory))
        memory["hidden"], memory["cell"] = (part.detach() for part in state)
        return loss

    def validate(self, net: nn.Module) -> Score:
        return _score(net, self._words.valid)

    def test(self, net: nn.Module) -> Score:
        return _score(net, self._words.test)


def columns(text: Tensor, count: int) -> Tensor:
    """``count`` equal parts of a text, (count, length); the remainder is not used."""
    length = text.numel() // count
    return text[: count * length].view(count, length)


def _state(memory: Memory) -> State | None:
    return (memory["hidden"], memory["cell"]) if memory else None


def _read(net: nn.Module, words: Tensor, state: State | None) -> tuple[Tensor, State]:
    logits, state = net(words[:, :-1], state)
    loss = functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
    return loss, state


def _score(net: nn.Module, text: Tensor) -> Score:
    """The state is carried through the whole text, in a few columns to be quick."""
    rows, state, total, count = columns(text, SCORED_ROWS), None, 0.0, 0
    for start in range(0, rows.shape[1] - 1, SCORED_WINDOW):
        words = rows[:, start : start + SCORED_WINDOW + 1]
        loss, state = _read(net, words, state)
        total += float(loss) * (words.shape[1] - 1)
        count += words.shape[1] - 1
    return perplexity(total / count)
