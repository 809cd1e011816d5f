"""``thinwire train``: one run of a task, with simulated or real workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from thinwire.cli.files import JSON_FILE, write_json
from thinwire.cli.start import INTERRUPTED

_Folder = click.Path(file_okay=False)


def _list(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        # Here, so that --help does not load all tasks.
        from thinwire_lab.cli.show.train import print_tasks

        print_tasks()
        context.exit()


@click.command()
@click.argument("task")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list,
    help="List all tasks with their scales, parameters and the data they need.",
)
@click.option(
    "--recipe",
    default="dense",
    show_default=True,
    help="How gradients are compressed, as in Python: dense, 'doublesqueeze(OneBit())'. dgc and "
    "dgc(0.01) take momentum, clipping and warm-up from the task.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Number of workers averaged over.",
)
@click.option(
    "--backend",
    type=click.Choice(["virtual", "ddp", "server"]),
    default="virtual",
    show_default=True,
    help="virtual: simulated workers in one process. ddp: a process for each worker, over gloo. "
    "server: the same with parameter servers.",
)
@click.option(
    "--servers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of parameter servers, with --backend server.",
)
@click.option(
    "--scale",
    type=click.Choice(["smoke", "small", "paper"]),
    default="small",
    show_default=True,
    help="smoke: a minute, to see it run. small: reduced for two cores. paper: for a cluster.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**62),
    default=0,
    show_default=True,
    help="Seed of initial weights, batches and dropout: the same seed gives the same result.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Number of steps, if not the task's; learning rate schedules shrink with it.",
)
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), help="The same, in epochs.")
@click.option(
    "--learning-rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Learning rate, if not the task's.",
)
@click.option(
    "--momentum",
    type=click.FloatRange(min=0, max=1, max_open=True),
    help="Momentum of SGD, if not the task's. DoubleSqueeze needs 0.",
)
@click.option(
    "--local-steps",
    type=click.IntRange(min=1),
    help="Let workers train alone for so many steps between exchanges, with a recipe such as "
    "local_average or diloco.",
)
@click.option(
    "--delay",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Local steps: so many more are made while an exchange is under way.",
)
@click.option(
    "--fragments",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Local steps: parts of the network that take turns.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads of each process. Results depend on it in their last bits.",
)
@click.option(
    "--save-steps",
    type=click.IntRange(min=1),
    help="Save a checkpoint every so many steps, in addition to every epoch and Ctrl-C.",
)
@click.option("--data", type=_Folder, help="Folder of data sets.  [default: $THINWIRE_DATA]")
@click.option("--out", type=_Folder, required=True, help="Folder for the log and checkpoints.")
@click.option(
    "--json",
    "json_file",
    type=JSON_FILE,
    help="Write settings, results and all events to this file.",
)
def train(json_file: Path | None, **settings: Any) -> None:
    """Train TASK with gradients that are compressed by a recipe.

    \b
    All tasks:         thinwire train --list
    Needs no data:     thinwire train gpt --recipe dgc --out runs/gpt
    As in the paper:   thinwire train resnet110 --recipe dgc --scale paper \\
                         --data DIR --out runs/dgc

    Ctrl-C saves a checkpoint and stops; a third one stops without saving. The same command resumes.
    With simulated workers a resumed run gives the same result, bit for bit. OUT/log.jsonl has a
    line for every epoch and evaluation.
    """
    # Here, so that no other command loads it.
    from thinwire_lab.cli.show.train import TrainProgress, print_introduction, print_result
    from thinwire_lab.train.interrupts import Interrupts
    from thinwire_lab.train.plan import prepare
    from thinwire_lab.train.run import Run, summary
    from thinwire_lab.train.settings import RunSettings

    plan = prepare(RunSettings(**settings))  # whose fields have the options' names
    with Run(plan) as run:
        print_introduction(plan, start=run.start)
        with Interrupts() as interrupts:
            with TrainProgress(plan, start=run.start) as progress:
                result = run.train(progress.show, interrupts)
            print_result(plan, result)
            if json_file is not None:
                write_json(json_file, summary(plan, result), allow_nan=False)
    if not result.finished:
        raise click.exceptions.Exit(INTERRUPTED)
