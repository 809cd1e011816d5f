"""What ``thinwire bench server`` prints, in a terminal and without one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from thinwire_lab.bench.report import Ratio
from thinwire_lab.bench.server.report import ServerReport, ServerRow
from thinwire_lab.cli.show.bench import closing, milliseconds, print_notes, print_rows

_COLUMNS = ("exchange", "log", "ms", "steps/s", "/ gloo", "/ off", "kB out/in", "cpu ms")
_LEGEND = """\
ms         of a step, best/median, as are ratios; steps/s are those of the median
/ gloo     our time over that of gloo's allreduce in buckets, as DDP does it
/ off      the time over that of the same recipe without a log
kB out/in  of one worker in a step, as whole frames; for the allreduce those of a ring
cpu ms     processor time of a step: of one worker + of all servers together
"""


def print_server_report(report: ServerReport) -> None:
    """Print a table for each number of workers, a legend, and where it was measured."""
    console = Console()
    for workers in dict.fromkeys(row.cell.workers for row in report.rows):
        rows = [row for row in report.rows if row.cell.workers == workers]
        lines = [_cells(row) for row in rows]
        print_rows(console, _title(report, workers, rows), _COLUMNS, lines, left=2)
    remarks = closing(report.machine, interrupted=report.interrupted, others=report.others)
    print_notes(console, _LEGEND, remarks)


def _title(report: ServerReport, workers: int, rows: Sequence[ServerRow]) -> str:
    rounds = max(len(row.samples.seconds) for row in rows)
    numel = f"{report.model.nbytes // 4:,}".replace(",", " ")
    link = f"{report.link} with keys" if report.keys else report.link
    return (
        f"{_counted(workers, 'worker')}, {_counted(report.servers, 'server')}, {link}, "
        f"{numel} parameters, backward {_backward(report)}, {_with(report)} optimizer; "
        f"rounds: {rounds} of {report.steps} steps"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _with(report: ServerReport) -> str:
    return "with" if report.optimizer else "without"


def _backward(report: ServerReport) -> str:
    model = report.model
    if not model.backward_ms:
        return "none"
    return f"{model.backward_ms:g} ms ({'slept' if model.backward == 'sleep' else 'computed'})"


def _cells(row: ServerRow) -> tuple[str, ...]:
    servers = f"+{milliseconds(row.server_cpu.median)}" if row.cell.log else ""
    return (
        row.cell.way,
        row.cell.log,
        f"{milliseconds(row.samples.best)}/{milliseconds(row.samples.median)}",
        f"{row.steps_per_second:.1f}",
        _pair(row.allreduce),
        _pair(row.log_off),
        f"{_kilobytes(row.sent_nbytes)}/{_kilobytes(row.received_nbytes)}",
        f"{milliseconds(row.worker_cpu.median)}{servers}",
    )


def _kilobytes(nbytes: float) -> str:
    return f"{nbytes / 1e3:.{1 if nbytes < 100_000 else 0}f}"


def _pair(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.best:.2f}/{ratio.median:.2f}"
