"""``thinwire demo``: see compression work on this machine, in about a minute."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

import click

from thinwire.cli.main import INTERRUPTED

if TYPE_CHECKING:
    from thinwire.cli.demo_view import Progress
    from thinwire.lab.demo import Result, Settings, Training


@click.command()
@click.option(
    "--steps", type=click.IntRange(min=1), default=250, show_default=True, help="Steps per recipe."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**63 - 1),
    default=0,
    show_default=True,
    help="Of the first weights and of the batches: the same for every recipe.",
)
@click.option(
    "--json",
    "json_file",
    type=click.File("w", lazy=False),
    help="Write settings, results and all losses to this file.",
)
def demo(steps: int, seed: int, json_file: TextIO | None) -> None:
    """Train a small GPT on the source of Python's standard library: dense beside compressed.

    Two workers and a server are simulated in this process. Every gradient goes through feedback,
    codec and frame, both ways, and the bytes that are counted are those of the frames. Ctrl-C stops
    and shows what there is.
    """
    # Here, so that "thinwire demo --help" does not wait for torch.
    from thinwire.cli.demo_view import Progress, print_introduction, print_results
    from thinwire.lab.demo import Settings, Training, plans
    from thinwire.lab.text import read_corpus

    settings = Settings(steps=steps, seed=seed)
    corpus = read_corpus()
    trainings = [Training(plan, settings, corpus) for plan in plans()]
    print_introduction(trainings[0], settings)
    with Progress(trainings, settings) as progress:
        finished = _train(trainings, settings, progress)
    results = [training.result() for training in trainings if training.steps]
    print_results(results, settings)
    if json_file is not None:
        _write(json_file, settings, results, finished=finished)
    if not finished:
        raise click.exceptions.Exit(INTERRUPTED)


def _train(trainings: list[Training], settings: Settings, progress: Progress) -> bool:
    """Take every step of all trainings by turns; False if Ctrl-C ended that early.

    By turns, because then other programs slow all of them alike, and Ctrl-C leaves them comparable.
    """
    try:
        for _ in range(settings.steps):
            for training in trainings:
                training.step()
                progress.show(training)
    except KeyboardInterrupt:
        return False
    return True


def _write(file: TextIO, settings: Settings, results: list[Result], *, finished: bool) -> None:
    report = {
        "finished": finished,
        "settings": asdict(settings),
        "results": [asdict(result) for result in results],
    }
    file.write(json.dumps(report, indent=1, allow_nan=False) + "\n")
