"""The table of ``docs/optimizers.md``, made from the results that are committed."""

from __future__ import annotations

from tests.docs.results import committed
from thinwire_lab.reproduce.execute import find_reproduction
from thinwire_lab.reproduce.plan import trials
from thinwire_lab.reproduce.table import Row, above, make_rows, spread

_SEEDS = 3
_OPTIMIZERS = {"sgd": "SGD", "momentum": "SGD, momentum 0.9", "adamw": "AdamW", "lans": "LANS"}


def optimizer_rows() -> list[str]:
    """The lines below its head, optimizer by optimizer."""
    reproduction = find_reproduction("optimizers", "small")
    results = committed("optimizers", trials(reproduction, seeds=_SEEDS))
    lines = []
    for name, title in _OPTIMIZERS.items():
        for experiment in reproduction.experiments:
            if experiment.name.endswith(f"-{name}"):
                network = experiment.title.removesuffix(f", {experiment.title.split(', ')[-1]}")
                rows = {row.variant.name: row for row in make_rows(experiment, results)}
                lines.append(_line([title, network], rows))
    return lines


def _line(names: list[str], rows: dict[str, Row]) -> str:
    dense, chosen, wrong = rows["dense"], rows["chosen"], rows.get("wrong")
    assert dense.seeds == chosen.seeds, names
    values = [
        str(chosen.seeds),
        _loss(dense),
        _loss(chosen),
        above(chosen.loss, dense.loss),
        f"1/{chosen.run:.0f}",
        "" if wrong is None else _wrong(wrong),
    ]
    return f"| {' | '.join([*names, *values])} |"


def _loss(row: Row) -> str:
    assert row.loss is not None, row.variant
    assert row.value is not None, row.variant
    right = f" ({row.value.mean:.2f} %)" if row.metric == "accuracy" else ""
    return spread(row.loss, 4) + right


def _wrong(row: Row) -> str:
    if row.loss is None:
        return "diverged"
    assert not row.diverged, "a mean over those that did not diverge would say nothing"
    return f"{row.loss.mean:,.0f}" if row.loss.mean > 20 else f"{row.loss.mean:.4f}"
