"""``thinwire bench links``: training steps over links of given rates, beside the alternatives."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from thinwire.cli.bench_links_table import print_links_report
from thinwire.cli.bench_progress import RoundsProgress
from thinwire.cli.json_file import JSON_FILE, write_json
from thinwire.cli.out_file import OutFile
from thinwire.lab.bench.given_gradient import BACKWARDS
from thinwire.lab.bench.links_cases import CASES, DEFAULT_CASES, RATES, LinkModel, LinksBench
from thinwire.lab.bench.links_models import MODELS
from thinwire.lab.bench.links_plot import check_plotting, plot_links
from thinwire.lab.bench.links_run import bench_links
from thinwire.lab.bench.rounds import Limits

INTERRUPTED = 130
"""As after any Ctrl-C, though there is a report."""


@click.command()
@click.option(
    "--rate",
    "rates",
    multiple=True,
    default=RATES,
    show_default=True,
    help="Of each host's link: such as 1gbit, or unlimited. Repeat it for more.",
)
@click.option(
    "--case",
    "cases",
    type=click.Choice(list(CASES)),
    multiple=True,
    default=DEFAULT_CASES,
    show_default=True,
    help="What to compare. Repeat it for more.",
)
@click.option("--hosts", type=int, default=2, show_default=True, help="One process on each.")
@click.option(
    "--model",
    type=click.Choice(MODELS),
    default=MODELS[0],
    show_default=True,
    help="24 layers that are computed, or given gradients of such shapes.",
)
@click.option("--width", type=int, default=1024, show_default=True, help="Of the model linear.")
@click.option("--batch", type=int, default=16, show_default=True, help="Of the model linear.")
@click.option(
    "--backward-ms",
    type=float,
    help="How long the backward of given gradients takes.  [default: resnet50 60, bert 150]",
)
@click.option(
    "--backward",
    type=click.Choice(BACKWARDS),
    default=BACKWARDS[0],
    show_default=True,
    help="Sleep meanwhile, as beside an accelerator, or use a processor.",
)
@click.option("--bucket-mb", type=float, help="Of all buckets; by default 25, and 1 for the first.")
@click.option("--optimizer", is_flag=True, help="Count the optimizer's part of a step, too.")
@click.option("--steps", type=int, default=3, show_default=True, help="Of a case in a round.")
@click.option("--rounds", type=int, default=10, show_default=True, help="Turns of each case.")
@click.option(
    "--seconds",
    type=float,
    default=120.0,
    show_default=True,
    help="Start no round of a rate after this.",
)
@click.option(
    "--json",
    "json_file",
    type=JSON_FILE,
    help="Write everything to this file, every sample included.",
)
@click.option(
    "--plot",
    type=OutFile(),
    help="Draw step times into this file, such as out.png (needs matplotlib).",
)
@click.option(
    "--trace",
    type=OutFile(),
    help="Write a timeline of every case to this file, for ui.perfetto.dev.",
)
def links(
    rates: tuple[str, ...],
    cases: tuple[str, ...],
    hosts: int,
    model: str,
    width: int,
    batch: int,
    backward_ms: float | None,
    backward: str,
    bucket_mb: float | None,
    optimizer: bool,
    steps: int,
    rounds: int,
    seconds: float,
    json_file: Path | None,
    plot: Path | None,
    trace: Path | None,
) -> None:
    """Time training steps between hosts, with DDP, its hooks and our recipes, by turns.

    Every host is a network namespace of this machine with a link of its own, which needs root. Only
    the ratios mean something on a machine that others use, too. Ctrl-C ends it with a report of
    what there is.
    """
    bench = LinksBench(
        limits=Limits(rounds, seconds),
        model=LinkModel(model, width, batch, backward_ms, backward, bucket_mb, optimizer),
        rates=rates,
        cases=cases,
        hosts=hosts,
        steps=steps,
        trace=trace,
    )
    if plot is not None:
        check_plotting()
    with RoundsProgress(rounds) as progress:
        report = bench_links(
            bench, lambda rate, round_, what: progress.show(round_, what, part=f"{rate}, ")
        )
    if json_file is not None:  # files first: who reads the table may be gone
        write_json(json_file, report.as_json())
    if plot is not None:
        plot_links(report, plot)
    print_links_report(report)
    if report.interrupted:
        sys.exit(INTERRUPTED)
