"""``Reproduction``: the experiments of a paper, as frozen data; ``trials`` are their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from thinwire.errors import ConfigError
from thinwire.local.rounds import Rounds


@dataclass(frozen=True, slots=True)
class Variant:
    """One row of a table. ``recipe`` is as for ``thinwire train``; ``main`` ones are run with all
    seeds, others with one. ``paper`` is the figure that the paper prints for this row, if any. With
    ``rounds`` workers make local steps."""

    name: str
    label: str
    recipe: str
    main: bool = False
    paper: str = ""
    rounds: Rounds | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """One table: the same task for all of ``variants``, of which the first is dense. ``source``
    is where the paper has its figures, ``about`` what is different here. ``half``: ratios are
    against 16 bits, not 32. None stands for the task's own setting."""

    name: str
    title: str
    source: str
    about: str
    task: str
    scale: str
    variants: tuple[Variant, ...]
    workers: int = 4
    epochs: float | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    half: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """A ratio that the paper prints, of a whole network. ``half``: it is against 16 bits."""

    label: str
    network: str
    recipe: str
    paper: float
    half: bool = False


@dataclass(frozen=True, slots=True)
class Reproduction:
    """``notes`` follow the tables, such as known mistakes in what was published."""

    name: str
    title: str
    experiments: tuple[Experiment, ...]
    notes: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    experiment: Experiment
    variant: Variant
    seed: int

    @property
    def name(self) -> str:
        return f"{self.experiment.name}/{self.variant.name}"

    @property
    def folder(self) -> str:
        return f"{self.experiment.name}-{self.variant.name}-seed{self.seed}"


def trials(
    reproduction: Reproduction, *, seeds: int, only: Sequence[str] = ()
) -> tuple[Trial, ...]:
    """All runs, the first seed of each row first, so that rows can be compared early.

    ``only`` are names or patterns of experiments or of single rows: "cifar-4", "lstm/dgc", "*/dgc".
    """
    planned = tuple(
        Trial(experiment, variant, seed)
        for seed in range(seeds)
        for experiment in reproduction.experiments
        for variant in experiment.variants
        if variant.main or seed == 0
    )
    for pattern in only:
        if not any(_fits(trial, pattern) for trial in planned):
            names = ", ".join(dict.fromkeys(trial.name for trial in planned))
            raise ConfigError(f"--only {pattern!r} matches no run, expected one of {names}")
    return tuple(
        trial for trial in planned if not only or any(_fits(trial, pattern) for pattern in only)
    )


def _fits(trial: Trial, pattern: str) -> bool:
    return fnmatchcase(trial.name, pattern) or fnmatchcase(trial.experiment.name, pattern)
