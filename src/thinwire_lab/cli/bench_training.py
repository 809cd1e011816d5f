"""``thinwire bench training``: train over slow links, and see when each way reaches a loss."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from thinwire.cli.files import write_text
from thinwire.cli.start import INTERRUPTED
from thinwire_lab.bench.training.report import make_page, make_tables
from thinwire_lab.bench.training.result import ResultStore
from thinwire_lab.bench.training.run import bench_training
from thinwire_lab.bench.training.settings import LINKS, TASKS, WAYS, TrainingBench
from thinwire_lab.cli.show.bench_training import TrainingProgress, print_training


@click.command(short_help="Held-out loss by time, over slow links.")
@click.option(
    "--scale",
    type=click.Choice(list(TASKS)),
    default="small",
    show_default=True,
    help="smoke: a tiny network and seconds, to see it run. small: a GPT of 10.7 million "
    "parameters, ten minutes for each way on a fast link.",
)
@click.option(
    "--links",
    multiple=True,
    default=LINKS,
    show_default=True,
    metavar="LINK",
    help="Rate of each host's link and time of a round trip, such as 100mbit-10ms, 1gbit or "
    "unlimited. Repeat it for more.",
)
@click.option(
    "--only",
    "ways",
    type=click.Choice(list(WAYS)),
    metavar="WAY",
    multiple=True,
    default=tuple(WAYS),
    help=f"Train only this way: {', '.join(WAYS)}. Repeat it for more.  [default: all]",
)
@click.option(
    "--steps",
    type=int,
    help="Optimizer steps of every way.  [default: "
    + ", ".join(f"{scale} {task.training.epochs:g}" for scale, task in TASKS.items())
    + "]",
)
@click.option(
    "--longest",
    "longest_minutes",
    type=float,
    default=30.0,
    show_default=True,
    help="A way that would take more minutes than this on a link is only timed there, for some "
    "steps.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for results and report.html.",
)
def training(
    scale: str,
    links: tuple[str, ...],
    ways: tuple[str, ...],
    steps: int | None,
    longest_minutes: float,
    out: Path,
) -> None:
    """Train one network in full over slow links, in several ways, and compare losses by time.

    Two hosts, each a network namespace of this machine, which needs root. Network, batches,
    optimizer, rate and number of steps are the same for all ways; what other commands have trained
    with more --steps into the same OUT is shown beside it. Every finished run is kept at once in
    OUT/results; Ctrl-C loses the current one, and the same command goes on.
    """
    bench = TrainingBench(scale, steps, ways, links, 60 * longest_minutes)
    store, command = ResultStore(out), shlex.join(["thinwire", *sys.argv[1:]])
    with TrainingProgress(bench) as progress:
        complete = bench_training(bench, store, progress, command=command)
    results = store.finished(scale)
    if results:
        write_text(out / "report.html", make_page(results, command=command).html())
        print_training(make_tables(results), out / "report.html")
    if not complete:
        sys.exit(INTERRUPTED)
