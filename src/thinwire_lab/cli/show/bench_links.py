"""What ``thinwire bench links`` prints, in a terminal and without one."""

from __future__ import annotations

from rich.console import Console

from thinwire_lab.bench.links.cases import NO_DELAY, SERVERS
from thinwire_lab.bench.links.models import LINEAR
from thinwire_lab.bench.links.report import LinkRow, LinksReport
from thinwire_lab.bench.report import Ratio
from thinwire_lab.cli.show.bench import closing, milliseconds, print_notes, print_rows

_COLUMNS = ("case", "ms", "DDP /", "/ none", "computing", "MB out/in", "link", "cpu ms")
_LEGEND = """\
ms         of a step, best/median, as are ratios; of local steps the mean of a round
DDP /      the time of DDP fp32, or of HSDP, over this: how many times faster it is
/ none     this time over that without communication, or none between hosts: 1 is the limit
computing  the share of the median step that is computing: that without communication over it
MB out/in  of one host in a step, as its interface counts them: headers and all
link       the part of the link's rate that the best step uses
cpu ms     processor time of a step on one host: of the trainer + of its server
"""


def print_links_report(report: LinksReport) -> None:
    """Print a table for each rate, a legend, and where it was measured."""
    console = Console()
    for rate in report.rates():
        rows = [row for row in report.rows if row.rate == rate]
        lines = [_cells(row) for row in rows]
        print_rows(console, _title(report, rate, rows), _COLUMNS, lines, left=1)
    remarks = closing(report.machine, interrupted=report.interrupted, others=report.others)
    print_notes(console, _LEGEND, remarks)


def _title(report: LinksReport, rate: str, rows: list[LinkRow]) -> str:
    numel = f"{report.model.numel:,}".replace(",", " ")
    steps = max(len(row.samples.seconds) for row in rows)
    link = rate if report.delay == NO_DELAY else f"{rate}, {report.delay} round trip"
    return (
        f"{link}, {_hosts(report)}, {report.model.name} of {numel} parameters, "
        f"{_step(report)}; {steps} steps"
    )


def _hosts(report: LinksReport) -> str:
    parts = "" if report.shards == 1 else f" of {report.shards} parts each"
    return f"{report.hosts} hosts{parts}"


def _step(report: LinksReport) -> str:
    model = report.model
    kind = "slept" if model.backward == "sleep" else "computed"
    synthetic = f"backward {model.synthetic_ms:g} ms ({kind})"
    backward = f"batch of {model.batch}" if model.name == LINEAR else synthetic
    return f"{backward}, {'with' if model.optimizer else 'without'} optimizer"


def _cells(row: LinkRow) -> tuple[str, ...]:
    servers = f"+{milliseconds(row.server_cpu.median)}" if row.case.exchange == SERVERS else ""
    return (
        row.case.label,
        f"{milliseconds(row.samples.best)}/{milliseconds(row.samples.median)}",
        _pair(row.ddp),
        _pair(row.none),
        "" if row.computing is None else f"{row.computing:.0%}",
        f"{_megabytes(row.sent_nbytes)}/{_megabytes(row.received_nbytes)}",
        "" if row.link is None else f"{row.link:.0%}",
        f"{milliseconds(row.cpu.median)}{servers}",
    )


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.{3 if nbytes < 1e6 else 1}f}"


def _pair(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    return "/".join(f"{x:.{2 if x < 10 else 1}f}" for x in (ratio.best, ratio.median))
