"""``Rounds``: when workers that train alone exchange their weights, counted in optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from thinwire.checks import check_whole
from thinwire.errors import ConfigError

_MOST = 32
"""Steps of a round, if nothing is said."""


@dataclass(frozen=True, slots=True)
class Due:
    """The exchange of a fragment begins, or what it brought is merged."""

    fragment: int
    begins: bool


@dataclass(frozen=True, slots=True)
class Rounds:
    """Every ``every`` steps a worker sends what it has changed, and gets the new global weights.

    ``fragments`` are parts of the network that take turns, evenly spread over a round; each of them
    is exchanged once in ``every`` steps. An exchange goes on while the next ``delay`` steps are
    made, and its result is merged after them: at a step that all workers know, so that a run
    repeats exactly.

    ``every="auto"`` is for workers of servers that are not equally fast: the fastest one makes
    ``most`` steps in a round (None: 32), each other one as many as it can in that time, at least
    ``delay`` or 1. They tell each other their speeds with what they push, and choose anew at the
    beginning of each round (DyLU, Liu et al. 2024).
    """

    every: int | Literal["auto"] = 32
    delay: int = 0
    fragments: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        self._check_most()
        check_whole(self.longest, least=1, owner="local_steps", field="every")
        check_whole(self.delay, least=0, owner="local_steps", field="delay")
        check_whole(self.fragments, least=1, owner="local_steps", field="fragments")
        if self.fragments > self.longest:
            raise ConfigError(
                f"local_steps: {self.fragments} fragments cannot take turns in {self.longest} "
                "steps: use fewer fragments, or a larger every"
            )
        if self.delay * self.fragments > self.longest:
            raise ConfigError(
                f"local_steps: an exchange begins every {self.longest / self.fragments:g} steps, "
                f"so that a delay of {self.delay} would let two be under way: use delay="
                f"{self.longest // self.fragments} or less"
            )

    def _check_most(self) -> None:
        if self.is_auto and self.most is not None:
            check_whole(self.most, least=1, owner="local_steps", field="most")
        elif self.most is not None:
            raise ConfigError('local_steps: most is for every="auto"')

    @property
    def is_auto(self) -> bool:
        """Whether each worker chooses its steps by its speed."""
        return self.every == "auto"

    @property
    def longest(self) -> int:
        """The steps of a round, at most."""
        if self.every == "auto":
            return _MOST if self.most is None else self.most
        return self.every

    def due(self, step: int) -> list[Due]:
        """What is to be done after so many steps, in order, where all rounds are equally long."""
        ended, begun = self._begins(step - self.delay), self._begins(step)
        due = [Due(ended, begins=False)] if self.overlaps and ended is not None else []
        if begun is not None:
            due.append(Due(begun, begins=True))
            if not self.overlaps:
                due.append(Due(begun, begins=False))
        return due

    def _begins(self, step: int) -> int | None:
        for fragment in range(self.fragments):
            first = (fragment + 1) * self.longest // self.fragments
            if step >= first and (step - first) % self.longest == 0:
                return fragment
        return None

    @property
    def overlaps(self) -> bool:
        """Whether training goes on during an exchange."""
        return self.delay > 0


def as_rounds(value: int | Literal["auto"] | Rounds) -> Rounds:
    """A number of steps is rounds of so many."""
    return value if isinstance(value, Rounds) else Rounds(value)


def divide(numels: Mapping[str, int], fragments: int) -> list[list[str]]:
    """Divide tensors, in their order, into parts of about as many elements; a part may be empty."""
    total, before = sum(numels.values()), 0
    parts: list[list[str]] = [[] for _ in range(fragments)]
    for name, numel in numels.items():
        middle = before + numel / 2
        parts[min(fragments - 1, int(middle * fragments / max(1, total)))].append(name)
        before += numel
    return parts
