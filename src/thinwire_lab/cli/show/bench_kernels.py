"""What ``thinwire bench kernels`` prints, in a terminal and without one."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thinwire_lab.bench.kernels.targets import Kind, Verdict
from thinwire_lab.bench.machine import BUSY
from thinwire_lab.bench.report import Outcome, Ratio, Report, Row
from thinwire_lab.bench.rounds import Samples
from thinwire_lab.cli.show.bench import print_notes

_COLUMNS = ("case", "ms", "/ memcpy", "GB/s", "torch /", "tuned /", "bits", "targets")
_MARKS = {Verdict.HOLDS: "✓", Verdict.UNSETTLED: "~", Verdict.MISSED: "✗"}
_STYLES = {Verdict.HOLDS: "green", Verdict.UNSETTLED: "yellow", Verdict.MISSED: "red"}
_LEGEND = """\
Pairs are best/median times or their ratios.
case      a step is error feedback and encoding; add is decoding and adding; steps of top-k
          and DGC keep 0.1 %; momentum is read as floats (SGD), or as bits, as Adam's is after a
          compressed step; AdamW is a step of the optimizer, tuned torch its fused=True
/ memcpy  our time over memcpy's; GB/s are of the float32 tensor, at best
torch /   the time of torch code, as one would write it, over ours
tuned /   the same for the fastest torch code that we could write, at best
bits      of payload, for each element of the tensor
targets   ≤1.15 of memcpy's time; ≥15x faster than torch; ≥1x tuned, faster than tuned torch;
          ≤1.35 of plain, of the time of the step without momentum;
          T times faster than one thread; b bits per index; ✓ met, ✗ missed, ~ the best and the
          median disagree
"""


def count(numel: int) -> str:
    return f"{numel:,}".replace(",", " ")


def print_report(report: Report) -> None:
    """Print a table for each size, a legend, and which targets were missed."""
    console = Console()
    for numel in dict.fromkeys(row.numel for row in report.rows):
        rows = [row for row in report.rows if row.numel == numel]
        title = f"{count(numel)} float32, rounds: {len(rows[0].samples['ours'].seconds)}"
        if console.is_terminal:
            console.print(_table(title, rows))
        else:
            _echo_lines(title, rows)
    print_notes(console, _LEGEND, _closing(report))


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for name in _COLUMNS[:-1]:
        table.add_column(name, justify="left" if name == "case" else "right", no_wrap=True)
    # The last may wrap, so that a narrow terminal costs lines and not digits.
    table.add_column(_COLUMNS[-1])
    for row in rows:
        table.add_row(*_cells(row), _targets(row))
    return table


def _echo_lines(title: str, rows: list[Row]) -> None:
    lines = [_COLUMNS, *((*_cells(row), _targets(row).plain) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    click.echo(title)
    for line in lines:
        numbers = [f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)][1:-1]
        click.echo("  ".join([f"{line[0]:<{widths[0]}}", *numbers, line[-1]]).rstrip())


def _cells(row: Row) -> tuple[str, ...]:
    """All but the targets."""
    return (
        row.name,
        _milliseconds(row.samples["ours"]),
        _pair(row.memcpy, 2),
        f"{row.gigabytes_per_second:.1f}",
        _pair(row.plain, 1),
        "" if row.tuned is None else f"{row.tuned.best:.1f}",
        "" if row.bits is None else f"{row.bits:.3g}",
    )


def _milliseconds(samples: Samples) -> str:
    return "/".join(_three_digits(1e3 * s) for s in (samples.best, samples.median))


def _three_digits(value: float) -> str:
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1}f}"


def _pair(ratio: Ratio | None, digits: int) -> str:
    return "" if ratio is None else f"{ratio.best:.{digits}f}/{ratio.median:.{digits}f}"


def _targets(row: Row) -> Text:
    text = Text(" ").join(
        Text(f"{_MARKS[outcome.verdict]}{_target_text(outcome)}", style=_STYLES[outcome.verdict])
        for outcome in row.outcomes
    )
    # memcpy on two threads has no target, but shows what this machine can reach.
    if row.one_thread is not None and not row.outcomes:
        text.append(f" T{_pair(row.one_thread, 2)}")
    return text


def _target_text(outcome: Outcome) -> str:
    limit = f"{outcome.target.limit:g}"
    if outcome.target.kind is Kind.MEMCPY:
        return f"≤{limit}"
    if outcome.target.kind is Kind.TORCH:
        return f"≥{limit}x"
    if outcome.target.kind is Kind.TUNED:
        return f"{_pair(outcome.ratio, 2)}≥{limit}x tuned"
    if outcome.target.kind is Kind.STEP:
        return f"{_pair(outcome.ratio, 2)}≤{limit} of plain"
    if outcome.target.kind is Kind.THREADS:
        return f"T{_pair(outcome.ratio, 2)}≥{limit}"
    return f"{outcome.ratio.best:.2f}b≤{limit}"


def _closing(report: Report) -> str:
    parts = [f"Measured on {report.machine}."]
    if report.others > BUSY:
        parts.append(
            f"Other processes used {report.others:.0%} of the machine: do not trust the two-thread "
            "ratios, and repeat the run when it is quiet."
        )
    for verdict, words in ((Verdict.MISSED, "Missed"), (Verdict.UNSETTLED, "Unsettled")):
        cells = [_cell_text(row, outcome) for row, outcome in report.with_verdict(verdict)]
        if cells:
            parts.append(f"{words}: {'; '.join(cells)}.")
    if not any(row.outcomes for row in report.rows):
        parts.append("Tensors this small have no targets.")
    elif not any(map(report.with_verdict, (Verdict.MISSED, Verdict.UNSETTLED))):
        parts.append("Every target is met.")
    return " ".join(parts)


def _cell_text(row: Row, outcome: Outcome) -> str:
    measured = f"{outcome.ratio.best:.3g} / {outcome.ratio.median:.3g}"
    return f"{row.name} at {count(row.numel)} ({measured}, target {_limit(outcome)})"


def _limit(outcome: Outcome) -> str:
    sign = "≤" if outcome.target.is_ceiling else "≥"
    return f"{sign}{outcome.target.limit:g} {outcome.target.kind.value}"
