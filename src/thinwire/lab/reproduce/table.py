"""Figures of an experiment from its results: mean and spread over seeds, and ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thinwire.lab.reproduce.plan import Experiment, Trial, Variant
from thinwire.lab.reproduce.result import Curve, TrialResult
from thinwire.lab.train.events import Outcome


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation; that of a single value is None."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation)


@dataclass(frozen=True, slots=True)
class Row:
    """A variant over its seeds. ``value`` is the metric, ``loss`` held-out; None if all diverged.

    ``push`` and ``pull`` are how many times fewer bytes than dense a step had, frames and all,
    after warm-up; ``both`` is for both ways together.
    """

    variant: Variant
    seeds: int
    diverged: int
    metric: str
    value: Spread | None
    loss: Spread | None
    push: float
    pull: float
    both: float
    pushed_nbytes: float


def make_rows(experiment: Experiment, results: Mapping[Trial, TrialResult]) -> tuple[Row, ...]:
    """One for each variant that has results."""
    rows = []
    for variant in experiment.variants:
        found = results_of(experiment, variant, results)
        if found:
            rows.append(_row(variant, found, half=experiment.half))
    return tuple(rows)


def results_of(
    experiment: Experiment, variant: Variant, results: Mapping[Trial, TrialResult]
) -> list[TrialResult]:
    return [r for t, r in results.items() if t.experiment == experiment and t.variant == variant]


def _row(variant: Variant, found: Sequence[TrialResult], *, half: bool) -> Row:
    outcomes = [outcome for outcome in (one.outcome for one in found) if outcome is not None]
    dense = found[0].dense_nbytes / (2 if half else 1)
    pushed, pulled = (
        statistics.fmean(values)
        for values in ([one.pushed for one in found], [one.pulled for one in found])
    )
    return Row(
        variant,
        seeds=len(found),
        diverged=len(found) - len(outcomes),
        metric=outcomes[0].metric if outcomes else "",
        value=_spread(outcomes, "value"),
        loss=_spread(outcomes, "loss"),
        push=dense / pushed if pushed else 0.0,
        pull=dense / pulled if pulled else 0.0,
        both=2 * dense / (pushed + pulled) if pushed else 0.0,
        pushed_nbytes=pushed,
    )


def _spread(outcomes: Sequence[Outcome], field: str) -> Spread | None:
    return Spread.of([getattr(outcome, field) for outcome in outcomes]) if outcomes else None


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over seeds, at those places that all of them have."""
    losses = [dict(curve) for curve in curves]
    return tuple(
        (epoch, statistics.fmean(one[epoch] for one in losses))
        for epoch, _ in curves[0]
        if all(epoch in one for one in losses)
    )
