"""``thinwire bench server``: time steps through parameter servers, beside gloo's allreduce."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from thinwire.cli.files import write_json
from thinwire.cli.start import INTERRUPTED
from thinwire.errors import ConfigError
from thinwire_lab.bench.rounds import Limits
from thinwire_lab.bench.server.cells import LOGS, LOOPBACK_LINK, ServerBench
from thinwire_lab.bench.server.run import bench_server
from thinwire_lab.bench.server.synthetic import SyntheticModel
from thinwire_lab.cli.bench_options import (
    backward_option,
    json_option,
    optimizer_option,
    rounds_option,
)
from thinwire_lab.cli.show.bench import RoundsProgress
from thinwire_lab.cli.show.bench_server import print_server_report


@click.command(short_help="Parameter servers, beside gloo's allreduce.")
@click.option(
    "--workers",
    default="1,2,4",
    show_default=True,
    metavar="N,N,...",
    help="Numbers of workers to measure, one after the other.",
)
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    default=("dense", "doublesqueeze(OneBit())", "dgc(0.001, warmup_steps=0)"),
    show_default=True,
    metavar="RECIPE",
    help="How gradients are compressed, as in Python. Repeat it for more.",
)
@click.option(
    "--log",
    "logs",
    type=click.Choice(LOGS),
    multiple=True,
    default=LOGS,
    show_default=True,
    help="off: no log. on: one that survives the end of the server. fsync: one that survives a "
    "power cut. Repeat it for more.",
)
@click.option("--servers", type=int, default=1, show_default=True, help="Number of servers.")
@click.option(
    "--numel", type=int, default=1_000_000, show_default=True, help="About how many parameters."
)
@click.option(
    "--backward-ms",
    type=float,
    default=0.0,
    show_default=True,
    help="Duration of a synthetic backward pass.",
)
@backward_option
@optimizer_option
@click.option(
    "--link",
    default=LOOPBACK_LINK,
    show_default=True,
    help="loopback, or the rate of a link, such as 1gbit: it puts every process on a host of its "
    "own, which needs root.",
)
@click.option(
    "--steps", type=int, default=5, show_default=True, help="Steps of each case in a round."
)
@click.option("--keys", is_flag=True, help="Give servers and workers keys: they talk by TLS.")
@rounds_option
@click.option(
    "--seconds",
    type=float,
    default=120.0,
    show_default=True,
    help="Start no more rounds after this many seconds.",
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write logs to this folder; fsync is as fast as its disk.  [default: temporary files]",
)
@json_option
def server(
    workers: str,
    numel: int,
    backward_ms: float,
    backward: str,
    rounds: int,
    seconds: float,
    json_file: Path | None,
    **settings: Any,
) -> None:
    """Time training steps through parameter servers, beside gloo's allreduce.

    Servers and workers are processes. Gradients are synthetic, so a step is the exchange alone or,
    with --backward-ms, an exchange that a backward pass can hide. All cases take turns; compare the
    ratios, because absolute times depend on what else the machine is doing. Ctrl-C stops and
    reports what was measured.
    """
    bench = ServerBench(
        workers=_whole_numbers(workers),
        model=SyntheticModel(numel, backward_ms, backward),
        limits=Limits(rounds, seconds),
        **settings,  # whose fields have the options' names
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
