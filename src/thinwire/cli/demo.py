"""``thinwire demo``: see compression work on this machine, in a few minutes."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thinwire.cli.json_file import JSON_FILE, write_json
from thinwire.cli.main import INTERRUPTED
from thinwire.cli.out_file import OutFile, write_text
from thinwire.errors import ThinwireError

if TYPE_CHECKING:
    from thinwire.lab.demo import Result, Way
    from thinwire.lab.train.plan import Plan
    from thinwire.lab.train.stopping import Interrupts


@click.command()
@click.option(
    "--steps", type=click.IntRange(min=1), default=250, show_default=True, help="Steps per recipe."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**62),
    default=0,
    show_default=True,
    help="Of the first weights and of the batches: the same for every recipe.",
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
    """Train a small GPT on the source of Python's standard library: dense beside compressed.

    A parameter server and two workers, as real processes on this machine, for each recipe in its
    turn. Bytes are counted as they pass, frames and all. Ctrl-C stops and shows what there is, and
    so does a process that fails.
    """
    # Here, so that no other command loads it.
    from thinwire.cli.demo_view import introduction, print_introduction, print_results
    from thinwire.lab.bench.machine import this_machine
    from thinwire.lab.demo import plan_of, ways
    from thinwire.lab.demo_report import make_page
    from thinwire.lab.train.stopping import Interrupts

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
    """The results of all ways that were finished before Ctrl-C or a failure, and the failure."""
    from thinwire.cli.demo_view import DemoProgress
    from thinwire.lab.demo import train

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
    found = {
        "finished": finished,
        "settings": plan.record(),
        "results": [asdict(result) for result in results],
    }
    write_json(file, found, allow_nan=False)
