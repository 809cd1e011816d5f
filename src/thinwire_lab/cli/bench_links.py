"""``thinwire bench links``: time training steps over slow links, beside the alternatives."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from thinwire.cli.files import OutFile, write_json
from thinwire.cli.start import INTERRUPTED
from thinwire_lab.bench.links.cases import (
    CASES,
    NO_DELAY,
    RATES,
    LinkModel,
    LinksBench,
)
from thinwire_lab.bench.links.models import MODELS
from thinwire_lab.bench.links.report import check_plotting, plot_links
from thinwire_lab.bench.links.run import bench_links
from thinwire_lab.bench.rounds import Limits
from thinwire_lab.cli.bench_options import (
    backward_option,
    json_option,
    optimizer_option,
    rounds_option,
)
from thinwire_lab.cli.show.bench import RoundsProgress
from thinwire_lab.cli.show.bench_links import print_links_report


@click.command(short_help="Training steps over slow links, beside DDP.")
@click.option(
    "--rate",
    "rates",
    multiple=True,
    default=RATES,
    show_default=True,
    help="Rate of each host's link, such as 1gbit, or unlimited. Repeat it for more.",
)
@click.option(
    "--delay",
    default=NO_DELAY,
    show_default=True,
    help="Added to a round trip between any two hosts, half of it on each way: what ping shows, "
    "such as 50ms.",
)
@click.option(
    "--case",
    "cases",
    type=click.Choice(list(CASES)),
    metavar="CASE",
    multiple=True,
    help=f"What to compare: {', '.join(CASES)}. Repeat it for more.  [default: all but those with "
    "servers, or with --shards all of FSDP]",
)
@click.option(
    "--hosts",
    type=int,
    default=2,
    show_default=True,
    help="Number of hosts, with one worker on each.",
)
@click.option(
    "--shards",
    type=int,
    default=1,
    show_default=True,
    help="Workers on each host, which hold the parts of one replica of a sharded network.",
)
@click.option(
    "--model",
    type=click.Choice(MODELS),
    default=MODELS[0],
    show_default=True,
    help="linear: 24 layers, really computed. Others: synthetic gradients of their shapes.",
)
@click.option(
    "--width", type=int, default=1024, show_default=True, help="Width of linear's layers."
)
@click.option("--batch", type=int, default=16, show_default=True, help="Batch size of linear.")
@click.option(
    "--backward-ms",
    type=float,
    help="Duration of a synthetic backward pass.  [default: resnet50 60, bert 150]",
)
@backward_option
@click.option(
    "--bucket-mb",
    type=float,
    help="Size of DDP's buckets.  [default: 25, and 1 for the first]",
)
@optimizer_option
@click.option(
    "--steps", type=int, default=3, show_default=True, help="Steps of each case in a round."
)
@rounds_option
@click.option(
    "--seconds",
    type=float,
    default=120.0,
    show_default=True,
    help="Start no more rounds of a rate after this many seconds.",
)
@json_option
@click.option(
    "--plot",
    type=OutFile(),
    help="Plot step times to this file, such as out.png; needs matplotlib.",
)
@click.option(
    "--trace",
    type=OutFile(),
    help="Write a timeline of every case to this file, for ui.perfetto.dev.",
)
def links(
    rounds: int,
    seconds: float,
    json_file: Path | None,
    plot: Path | None,
    **options: Any,
) -> None:
    """Time training steps between hosts: DDP, its compression hooks and Thinwire's recipes.

    Every host is a network namespace of this machine with a link of its own, which needs root. All
    cases take turns; compare the ratios, because absolute times depend on what else the machine is
    doing. Ctrl-C stops and reports what was measured.
    """
    bench = _settings(Limits(rounds, seconds), **options)
    if plot is not None:
        check_plotting()
    with RoundsProgress(rounds) as progress:
        report = bench_links(
            bench, lambda rate, round_, what: progress.show(round_, what, part=f"{rate}, ")
        )
    if json_file is not None:  # files first: printing fails if the reader of a pipe has ended
        write_json(json_file, report.as_json())
    if plot is not None:
        plot_links(report, plot)
    print_links_report(report)
    if report.interrupted:
        sys.exit(INTERRUPTED)


def _settings(limits: Limits, **options: Any) -> LinksBench:
    """Options have the names of fields; those of ``LinkModel`` go there."""
    names = {field.name for field in fields(LinkModel)} & options.keys()
    model = LinkModel(name=options.pop("model"), **{name: options.pop(name) for name in names})
    return LinksBench(limits, model, **options)
