"""``Row``: mean and spread of a variant over seeds, and its ratios, as cells of a table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from thinwire_lab.reproduce.plan import Experiment, Trial, Variant
from thinwire_lab.reproduce.result import Curve, TrialResult
from thinwire_lab.train.events import Outcome


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

    ``push`` and ``pull`` are how many times fewer bytes than dense a step had after warm-up, as
    whole frames; ``both`` is for both ways together, and ``run`` for these in the whole run.
    ``run_nbytes`` are the bytes of one worker in the whole run, both ways.
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
    run: float
    run_nbytes: float


def make_rows(experiment: Experiment, results: Mapping[Trial, TrialResult]) -> tuple[Row, ...]:
    """One for each variant that has results."""
    rows = []
    for variant in experiment.variants:
        runs = results_of(experiment, variant, results)
        if runs:
            rows.append(_row(variant, runs, half=experiment.half))
    return tuple(rows)


def results_of(
    experiment: Experiment, variant: Variant, results: Mapping[Trial, TrialResult]
) -> list[TrialResult]:
    return [r for t, r in results.items() if t.experiment == experiment and t.variant == variant]


def _row(variant: Variant, runs: Sequence[TrialResult], *, half: bool) -> Row:
    outcomes = [outcome for outcome in (run.outcome for run in runs) if outcome is not None]
    dense = runs[0].dense_nbytes / (2 if half else 1)
    pushed, pulled = (
        statistics.fmean(values)
        for values in ([run.pushed for run in runs], [run.pulled for run in runs])
    )
    return Row(
        variant,
        seeds=len(runs),
        diverged=len(runs) - len(outcomes),
        metric=outcomes[0].metric if outcomes else "",
        value=_spread(outcomes, "value"),
        loss=_spread(outcomes, "loss"),
        push=dense / pushed if pushed else 0.0,
        pull=dense / pulled if pulled else 0.0,
        both=2 * dense / (pushed + pulled) if pushed else 0.0,
        pushed_nbytes=pushed,
        run=statistics.fmean(run.run_ratio for run in runs) / (2 if half else 1),
        run_nbytes=statistics.fmean(run.run_nbytes for run in runs),
    )


def _spread(outcomes: Sequence[Outcome], field: str) -> Spread | None:
    return Spread.of([getattr(outcome, field) for outcome in outcomes]) if outcomes else None


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over seeds, at the epochs that all of them have."""
    losses = [dict(curve) for curve in curves]
    return tuple(
        (epoch, statistics.fmean(seed[epoch] for seed in losses))
        for epoch, _ in curves[0]
        if all(epoch in seed for seed in losses)
    )


SEEDS, PUSH_KB, RUN_MB = "seeds", "push, kB", "run, MB"
_ABOVE = "above dense"
_UNITS = {"accuracy": " %"}


def header(experiment: Experiment, rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(name for name, _ in _columns(experiment, rows))


def cells(experiment: Experiment, rows: Sequence[Row]) -> tuple[tuple[str, ...], ...]:
    """A tuple for each row, compared with the first row."""
    columns = _columns(experiment, rows)
    return tuple(tuple(cell(row) for _, cell in columns) for row in rows)


_Column = tuple[str, Callable[[Row], str]]


def _columns(experiment: Experiment, rows: Sequence[Row]) -> tuple[_Column, ...]:
    dense = rows[0]
    return (
        ("", lambda row: row.variant.label),
        (SEEDS, lambda row: str(row.seeds)),
        *_metric(rows),
        ("held-out loss", lambda row: spread(row.loss, 4) if row.loss else ""),
        (_ABOVE, lambda row: above(row.loss, dense.loss)),
        (PUSH_KB, lambda row: f"{row.pushed_nbytes / 1e3:,.1f}"),
        (f"push / {'fp16' if experiment.half else 'fp32'}", lambda row: times(row.push)),
        ("both ways", lambda row: times(row.both)),
        (RUN_MB, lambda row: f"{row.run_nbytes / 1e6:,.1f}"),
        ("whole run", lambda row: times(row.run)),
        *_paper(experiment),
    )


def _paper(experiment: Experiment) -> tuple[_Column, ...]:
    if not any(variant.paper for variant in experiment.variants):
        return ()
    return (("paper", lambda row: row.variant.paper),)


def _metric(rows: Sequence[Row]) -> tuple[_Column, ...]:
    """Perplexities have their difference from dense beside them. Accuracies do not: there, higher
    is better."""
    dense, name = rows[0], next((row.metric for row in rows if row.metric), "result")
    unit = _UNITS.get(name, "")

    def score(row: Row) -> str:
        return spread(row.value, 2, unit) if row.value else "diverged"

    if name != "perplexity":
        return ((name, score),)
    return (name, score), (_ABOVE, lambda row: above(row.value, dense.value))


def spread(values: Spread, digits: int, unit: str = "") -> str:
    deviation = "" if values.deviation is None else f" ± {values.deviation:.{digits}f}"
    return f"{values.mean:.{digits}f}{deviation}{unit}"


def above(values: Spread | None, dense: Spread | None) -> str:
    """How much higher than dense it is, in per cent; "" for dense itself."""
    if values is dense or values is None or dense is None:
        return ""
    return f"{round(100 * (values.mean / dense.mean - 1), 1) + 0.0:+.1f} %"  # no -0.0


def times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 9.5 else f"{ratio:.1f}x"


def judge(rows: Sequence[Row]) -> tuple[str, ...]:
    """Sentences that compare rows with dense, the first one, and with the spread of seeds. Rows
    with one seed are left out."""
    dense, *others = rows
    if dense.loss is None or dense.loss.deviation is None:
        return ("One seed cannot separate a difference from chance.",)
    return tuple(_verdict(row, dense.loss) for row in others if row.seeds > 1)


def _verdict(row: Row, dense: Spread) -> str:
    if row.loss is None:
        return f"{row.variant.label}: diverged."
    gap = row.loss.mean - dense.mean
    noise = max(dense.deviation or 0.0, row.loss.deviation or 0.0)
    place = "within" if abs(gap) <= noise else "more than"
    return (
        f"{row.variant.label}: held-out loss {gap:+.4f} from dense, {place} the spread of seeds "
        f"(± {noise:.4f})."
    )
