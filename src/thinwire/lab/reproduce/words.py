"""Figures as people read them: the same on the terminal and in the report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thinwire.lab.reproduce.plan import Experiment
from thinwire.lab.reproduce.table import Row, Spread

SEEDS, PUSH_KB = "seeds", "push, kB"
_ABOVE = "above dense"
_UNITS = {"accuracy": " %"}


def header(experiment: Experiment, rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(name for name, _ in _columns(experiment, rows))


def cells(experiment: Experiment, rows: Sequence[Row]) -> tuple[tuple[str, ...], ...]:
    """A tuple for each row; they are compared with the first."""
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
        ("paper", lambda row: row.variant.paper),
    )


def _metric(rows: Sequence[Row]) -> tuple[_Column, ...]:
    """Perplexities have their difference beside them. Accuracies do not: higher ones are better,
    and lower losses."""
    dense, name = rows[0], next((row.metric for row in rows if row.metric), "result")
    unit = _UNITS.get(name, "")

    def score(row: Row) -> str:
        return spread(row.value, 2, unit) if row.value else "diverged"

    if name != "perplexity":
        return ((name, score),)
    return (name, score), (_ABOVE, lambda row: above(row.value, dense.value))


def spread(found: Spread, digits: int, unit: str = "") -> str:
    deviation = "" if found.deviation is None else f" ± {found.deviation:.{digits}f}"
    return f"{found.mean:.{digits}f}{deviation}{unit}"


def above(found: Spread | None, dense: Spread | None) -> str:
    """How much higher than dense it is, in per cent. Nothing is said of dense itself."""
    if found is dense or found is None or dense is None:
        return ""
    return f"{100 * (found.mean / dense.mean - 1):+.1f} %"


def times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 9.5 else f"{ratio:.1f}x"


def judge(rows: Sequence[Row]) -> tuple[str, ...]:
    """Sentences: where rows are, beside what seeds alone make of dense, the first of them. What was
    run with one seed is not judged."""
    dense, *others = rows
    if dense.loss is None or dense.loss.deviation is None:
        return ("One seed does not tell what is chance.",)
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
