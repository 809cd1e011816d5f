"""``thinwire demo``: show compression at work on this machine, in a few minutes."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thinwire.cli.files import JSON_FILE, OutFile, write_json, write_text
from thinwire.cli.start import INTERRUPTED
from thinwire.errors import ThinwireError

if TYPE_CHECKING:
    from thinwire_lab.demo import Result, Way
    from thinwire_lab.train.interrupts import Interrupts
    from thinwire_lab.train.plan import Plan


@click.command()
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=250,
    show_default=True,
    help="Number of steps for each recipe.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**62),
    default=0,
    show_default=True,
    help="Seed of initial weights and batches, which are the same for every recipe.",
)
@click.option(
    "--report",
    type=OutFile(make_folder=True),
    default=Path("thinwire-report.html"),
    show_default=True,
    help="Write tables and plots to this file.",
)
@click.option(
    "--json",
    "json_file",
    type=JSON_FILE,
    help="Write settings, results and all losses to this file.",
)
def demo(steps: int, seed: int, report: Path, json_file: Path | None) -> None:
    """Train a small GPT with dense and with compressed gradients, and compare loss and bytes.

    It learns the source of Python's standard library, so it needs no data. For each recipe a
    parameter server and two workers run as processes on this machine. Bytes are those of
    whole frames. Ctrl-C stops and shows the recipes that are finished.
    """
    # Here, so that no other command loads it.
    from thinwire_lab.bench.machine import this_machine
    from thinwire_lab.cli.show.demo import introduction, print_introduction, print_results
    from thinwire_lab.demo import make_page, plan_of, ways
    from thinwire_lab.train.interrupts import Interrupts

    with tempfile.TemporaryDirectory(prefix="thinwire-demo-") as folder:
        plans = [
            (way, plan_of(way, Path(folder) / str(number), steps=steps, seed=seed))
            for number, way in enumerate(ways())
        ]
        first = plans[0][1]
        print_introduction(first)
        with Interrupts() as interrupts:
            results, failure = _train(plans, interrupts)
            finished = len(results) == len(plans)
            print_results(results, interrupted=not finished and failure is None)
            if results:
                page = make_page(results, introduction(first), str(this_machine()))
                write_text(report, page.html())
                click.echo(f"\nReport: {report.resolve()}")
            if json_file is not None:
                _write(json_file, first, results, finished=finished)
    if failure is not None:
        raise failure
    if not finished:
        raise click.exceptions.Exit(INTERRUPTED)


def _train(
    plans: list[tuple[Way, Plan]], interrupts: Interrupts
) -> tuple[list[Result], ThinwireError | None]:
    """The results of all recipes that finished before Ctrl-C or a failure, and the failure."""
    from thinwire_lab.cli.show.demo import DemoProgress
    from thinwire_lab.demo import train

    results: list[Result] = []
    with DemoProgress(plans) as progress:
        for way, plan in plans:
            try:
                result = train(way, plan, progress.follow(way), interrupts)
            except ThinwireError as failure:
                return results, failure
            if result is None:
                break
            results.append(result)
    return results, None


def _write(file: Path, plan: Plan, results: list[Result], *, finished: bool) -> None:
    summary = {
        "finished": finished,
        "settings": plan.record(),
        "results": [asdict(result) for result in results],
    }
    write_json(file, summary, allow_nan=False)
