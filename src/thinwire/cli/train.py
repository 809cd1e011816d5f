"""``thinwire train``: one run of a task, on simulated workers or on real ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from thinwire.cli.json_file import JSON_FILE, write_json
from thinwire.cli.main import INTERRUPTED

if TYPE_CHECKING:
    from thinwire.lab.train.plan import Plan
    from thinwire.lab.train.run import Result

_Folder = click.Path(file_okay=False, path_type=Path)


def _list(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from thinwire.cli.train_list import print_tasks

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
    help="Show all tasks: scales, parameters, and the data they need.",
)
@click.option(
    "--recipe",
    default="dense",
    show_default=True,
    help="As in Python, such as 'doublesqueeze(OneBit())'. dgc and dgc(0.01) get momentum, "
    "clipping and warm-up from the task.",
)
@click.option("--workers", type=click.IntRange(min=1), default=4, show_default=True)
@click.option(
    "--backend",
    type=click.Choice(["virtual", "ddp", "server"]),
    default="virtual",
    show_default=True,
    help="virtual: all in one process. ddp: processes over gloo. server: processes and parameter "
    "servers.",
)
@click.option(
    "--servers", type=click.IntRange(min=1), default=1, show_default=True, help="Of that backend."
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
    help="Of first weights, batches and dropout: the same seed, the same result.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Train so many; schedules shrink, too.")
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), help="The same in epochs.")
@click.option(
    "--learning-rate", type=click.FloatRange(min=0, min_open=True), help="Instead of the task's."
)
@click.option(
    "--momentum",
    type=click.FloatRange(min=0, max=1, max_open=True),
    help="Instead of the task's; DoubleSqueeze needs 0.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Of each process. Sums depend on it in their last bits, so it belongs to a run.",
)
@click.option(
    "--save-steps",
    type=click.IntRange(min=1),
    help="Save after so many steps, and not only after every epoch and with Ctrl-C.",
)
@click.option(
    "--data", type=_Folder, help="The folder of data sets.  [default: that of $THINWIRE_DATA]"
)
@click.option("--out", type=_Folder, required=True, help="The run's folder: log and checkpoints.")
@click.option(
    "--json",
    "json_file",
    type=JSON_FILE,
    help="Write settings, results and all events to this file.",
)
def train(
    task: str,
    recipe: str,
    workers: int,
    backend: str,
    servers: int,
    scale: str,
    seed: int,
    steps: int | None,
    epochs: float | None,
    learning_rate: float | None,
    momentum: float | None,
    threads: int,
    save_steps: int | None,
    data: Path | None,
    out: Path,
    json_file: Path | None,
) -> None:
    """Train TASK, with gradients that travel as the recipe says.

    \b
    What is there?     thinwire train --list
    Needs no data:     thinwire train gpt --recipe dgc --out runs/gpt
    As in the paper:   thinwire train resnet110 --recipe dgc --scale paper \\
                         --data DIR --out runs/dgc

    Ctrl-C saves and stops; a third one ends at once, without. The same command goes on from there:
    with simulated workers the result is that of a run that was not stopped, bit for bit.
    OUT/log.jsonl has a line for every epoch and evaluation.
    """
    # Here, so that no other command loads it.
    from thinwire.cli.train_view import TrainProgress, print_introduction, print_result
    from thinwire.lab.train.plan import prepare
    from thinwire.lab.train.run import Run
    from thinwire.lab.train.settings import RunSettings
    from thinwire.lab.train.stopping import Interrupts

    settings = RunSettings(
        task=task,
        out=str(out),
        scale=scale,
        recipe=recipe,
        workers=workers,
        backend=backend,
        servers=servers,
        seed=seed,
        epochs=epochs,
        steps=steps,
        learning_rate=learning_rate,
        momentum=momentum,
        threads=threads,
        save_steps=save_steps,
        data=None if data is None else str(data),
    )
    plan = prepare(settings)
    with Run(plan) as run:
        print_introduction(plan, start=run.start)
        with Interrupts() as interrupts:
            with TrainProgress(plan, start=run.start) as progress:
                result = run.train(progress.show, interrupts)
            print_result(plan, result)
            if json_file is not None:
                _write(json_file, plan, result)
    if not result.finished:
        raise click.exceptions.Exit(INTERRUPTED)


def _write(file: Path, plan: Plan, result: Result) -> None:
    from thinwire.lab.train.summary import summary

    write_json(file, summary(plan, result), allow_nan=False)
