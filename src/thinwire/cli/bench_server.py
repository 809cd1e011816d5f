"""``thinwire bench server``: parameter servers beside gloo's allreduce."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from thinwire.cli.bench_progress import RoundsProgress
from thinwire.cli.bench_server_table import print_server_report
from thinwire.cli.json_file import JSON_FILE, write_json
from thinwire.errors import ConfigError
from thinwire.lab.bench.given_gradient import BACKWARDS
from thinwire.lab.bench.rounds import Limits
from thinwire.lab.bench.server_cells import LOGS, ServerBench
from thinwire.lab.bench.server_given import Given
from thinwire.lab.bench.server_link import LOOPBACK_LINK
from thinwire.lab.bench.server_run import bench_server

INTERRUPTED = 130
"""As after any Ctrl-C, though there is a report."""


@click.command()
@click.option(
    "--workers",
    default="1,2,4",
    show_default=True,
    metavar="N,N,...",
    help="Numbers of worker processes.",
)
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    default=("dense", "doublesqueeze(OneBit())", "dgc(0.001)"),
    show_default=True,
    metavar="RECIPE",
    help="As in Python. Repeat it for more.",
)
@click.option(
    "--log",
    "logs",
    type=click.Choice(LOGS),
    multiple=True,
    default=LOGS,
    show_default=True,
    help="No log; one that survives the server's end; one that survives a power cut. Repeat it.",
)
@click.option("--servers", type=int, default=1, show_default=True, help="Server processes.")
@click.option("--numel", type=int, default=1_000_000, show_default=True, help="Parameters, about.")
@click.option(
    "--backward-ms", type=float, default=0.0, show_default=True, help="How long a backward takes."
)
@click.option(
    "--backward",
    type=click.Choice(BACKWARDS),
    default="sleep",
    show_default=True,
    help="Sleep, as beside an accelerator, or use a processor for so long.",
)
@click.option("--optimizer", is_flag=True, help="Count the optimizer's part of a step, too.")
@click.option(
    "--link",
    default=LOOPBACK_LINK,
    show_default=True,
    help="A rate such as 1gbit gives every process a host of its own; needs root.",
)
@click.option("--steps", type=int, default=5, show_default=True, help="Of a cell in a round.")
@click.option("--rounds", type=int, default=10, show_default=True, help="Turns of each cell.")
@click.option(
    "--seconds", type=float, default=120.0, show_default=True, help="Start no round after this."
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where logs are kept meanwhile: fsync is as fast as its disk.  [default: for temporary "
    "files]",
)
@click.option(
    "--json",
    "json_file",
    type=JSON_FILE,
    help="Write everything to this file, every sample included.",
)
def server(
    workers: str,
    recipes: tuple[str, ...],
    logs: tuple[str, ...],
    servers: int,
    numel: int,
    backward_ms: float,
    backward: str,
    optimizer: bool,
    link: str,
    steps: int,
    rounds: int,
    seconds: float,
    folder: Path | None,
    json_file: Path | None,
) -> None:
    """Time training steps through parameter servers, beside gloo's allreduce, by turns.

    Servers and workers are processes of their own. Gradients are given, so that a step is an
    exchange and, with --backward-ms, the time that can hide it. Only the ratios mean
    something on a machine that others use, too. Ctrl-C ends it with a report of what there is.
    """
    bench = ServerBench(
        workers=_whole_numbers(workers),
        recipes=recipes,
        logs=logs,
        given=Given(numel, backward_ms, backward),
        limits=Limits(rounds, seconds),
        link=link,
        servers=servers,
        steps=steps,
        optimizer=optimizer,
        folder=folder,
    )
    with RoundsProgress(rounds) as progress:
        report = bench_server(bench, progress.show)
    print_server_report(report)
    if json_file is not None:
        write_json(json_file, report.as_json())
    if report.interrupted:
        sys.exit(INTERRUPTED)


def _whole_numbers(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"--workers {text}: expected whole numbers and commas, such as 1,2,4")
    return tuple(map(int, words))
