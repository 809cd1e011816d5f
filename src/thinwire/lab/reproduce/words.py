"""Figures as people read them: the same on the terminal and in the report. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.lab.reproduce.plan import Experiment
from thinwire.lab.reproduce.table import Row, Spread

_UNITS = {"accuracy": " %"}
_PERPLEXITY = "perplexity"


def header(experiment: Experiment, rows: Sequence[Row]) -> tuple[str, ...]:
    metric = next((row.metric for row in rows if row.metric), "result")
    against = "fp16" if experiment.half else "fp32"
    columns = (
        "seeds",
        metric,
        "held-out loss",
        f"{_PERPLEXITY if metric == _PERPLEXITY else 'loss'} above dense",
        "push, kB",
        f"push / {against}",
        "both ways",
    )
    return ("", *columns, "paper")


def cells(row: Row, dense: Row) -> tuple[str, ...]:
    return (
        row.variant.label,
        str(row.seeds),
        spread(row.value, 2, _UNITS.get(row.metric, "")) if row.value else "diverged",
        spread(row.loss, 4) if row.loss else "",
        above(row, dense),
        f"{row.pushed_nbytes / 1e3:,.1f}",
        times(row.push),
        times(row.both),
        row.variant.paper,
    )


def spread(found: Spread, digits: int, unit: str = "") -> str:
    deviation = "" if found.deviation is None else f" ± {found.deviation:.{digits}f}"
    return f"{found.mean:.{digits}f}{deviation}{unit}"


def above(row: Row, dense: Row) -> str:
    """How much higher than dense it is, in per cent; lower is better. Perplexities are compared
    where they are shown, and else losses: a higher accuracy is better."""
    ours, base = _compared(row), _compared(dense)
    if row is dense or ours is None or base is None:
        return ""
    return f"{100 * (ours.mean / base.mean - 1):+.1f} %"


def _compared(row: Row) -> Spread | None:
    return row.value if row.metric == _PERPLEXITY else row.loss


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
