"""How ``thinwire bench server`` shows progress and results, in a terminal and without one."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import click
import rich.progress
from rich.console import Console
from rich.table import Table

from thinwire.lab.bench.report import Ratio
from thinwire.lab.bench.server_report import ServerReport, ServerRow

_BUSY = 0.1
_COLUMNS = ("exchange", "log", "ms", "steps/s", "/ gloo", "/ off", "kB out/in", "cpu ms")
_LEGEND = """\
ms         of a step, best/median, as are ratios; steps/s are those of the median
/ gloo     our time over that of gloo's allreduce in buckets, as DDP does it
/ off      the time over that of the same recipe without a log
kB out/in  of one worker in a step, frames and all; for the allreduce those of a ring
cpu ms     processor time of a step: of one worker + of all servers together
"""


class ServerProgress:
    """A bar in a terminal, a line for every round elsewhere; on stderr, as it is not the result."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._console = Console(stderr=True)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._shown = -1

    def __enter__(self) -> ServerProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, round_: int, what: str) -> None:
        text = f"round {round_} of {self._rounds}" if round_ else "warming up"
        if self._console.is_terminal:
            self._bar.update(
                self._task,
                description=f"{text}: {what:<50}",
                total=self._rounds,
                completed=round_,
            )
        elif round_ != self._shown:
            self._shown = round_
            click.echo(text, err=True)


def print_server_report(report: ServerReport) -> None:
    """A table for each number of workers, what the columns mean, and where it was measured."""
    console = Console()
    for workers in dict.fromkeys(row.cell.workers for row in report.rows):
        rows = [row for row in report.rows if row.cell.workers == workers]
        lines = [_cells(row) for row in rows]
        title = _title(report, workers, rows)
        if console.is_terminal:
            console.print(_table(title, lines))
        else:
            _echo_lines(title, lines)
    console.print(_LEGEND, style="dim", soft_wrap=not console.is_terminal, highlight=False)
    console.print(_closing(report), soft_wrap=not console.is_terminal, highlight=False)


def _title(report: ServerReport, workers: int, rows: Sequence[ServerRow]) -> str:
    rounds = max(len(row.samples.seconds) for row in rows)
    numel = f"{report.given.nbytes // 4:,}".replace(",", " ")
    return (
        f"{_counted(workers, 'worker')}, {_counted(report.servers, 'server')}, {report.link}, "
        f"{numel} parameters, backward {_backward(report)}; rounds: {rounds} of {report.steps} "
        "steps"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _backward(report: ServerReport) -> str:
    given = report.given
    if not given.backward_ms:
        return "none"
    return f"{given.backward_ms:g} ms ({'slept' if given.backward == 'sleep' else 'computed'})"


def _table(title: str, lines: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    # Only the first may wrap, so that a narrow terminal costs lines and not digits.
    table.add_column(_COLUMNS[0], overflow="fold")
    table.add_column(_COLUMNS[1], no_wrap=True)
    for name in _COLUMNS[2:]:
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def _echo_lines(title: str, lines: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(line[i]) for line in (_COLUMNS, *lines)) for i in range(len(_COLUMNS))]
    click.echo(title)
    for line in (_COLUMNS, *lines):
        words = [f"{cell:<{width}}" for cell, width in zip(line[:2], widths[:2], strict=True)]
        words += [f"{cell:>{width}}" for cell, width in zip(line[2:], widths[2:], strict=True)]
        click.echo("  ".join(words).rstrip())


def _cells(row: ServerRow) -> tuple[str, ...]:
    servers = f"+{_ms(row.server_cpu.median)}" if row.cell.log else ""
    return (
        row.cell.way,
        row.cell.log,
        f"{_ms(row.samples.best)}/{_ms(row.samples.median)}",
        f"{row.steps_per_second:.1f}",
        _pair(row.allreduce),
        _pair(row.log_off),
        f"{_kilobytes(row.sent_nbytes)}/{_kilobytes(row.received_nbytes)}",
        f"{_ms(row.worker_cpu.median)}{servers}",
    )


def _kilobytes(nbytes: float) -> str:
    return f"{nbytes / 1e3:.{1 if nbytes < 100_000 else 0}f}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.{1 if seconds < 0.1 else 0}f}"


def _pair(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.best:.2f}/{ratio.median:.2f}"


def _closing(report: ServerReport) -> str:
    parts = [f"Measured on {report.machine}."]
    if report.interrupted:
        parts.append("It was interrupted: some rounds are missing.")
    if report.others > _BUSY:
        parts.append(
            f"Other processes had {report.others:.0%} of the machine meanwhile: repeat the run "
            "when it is quiet."
        )
    return " ".join(parts)
