"""A job for runners, which records what they do with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

STAGES = ["first", "second"]


def ignore(error: BaseException) -> None:
    """Where a test looks at errors in another way."""


class Recorder:
    """A job that writes down what is done with it."""

    def __init__(self, log: list[str], name: str, *, fails: Exception | None = None) -> None:
        self.log, self.name, self.fails = log, name, fails
        self.stages: Sequence[Callable[[], None]] = (self.first, self.second)

    def first(self) -> None:
        self.log.append(f"first {self.name}")
        if self.fails is not None:
            raise self.fails

    def second(self) -> None:
        self.log.append(f"second {self.name}")

    def finish(self) -> None:
        self.log.append(f"finish {self.name}")
