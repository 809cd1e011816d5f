"""What ``thinwire demo`` shows: progress while it runs, then a table and what it means."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from types import TracebackType

import rich.box
import rich.progress
from rich.console import Console
from rich.table import Table

from thinwire.lab.demo import LAST, Result, Settings, Training

CLOSE = 0.1
"""Held-out losses this near to dense, in nats, are called close."""

LINK_MEGABITS = 100
"""The link that waiting times are calculated for, in Mbit/s."""

PLAIN_LINES = 5
"""How many lines a recipe prints where there is no terminal to draw a bar on."""


def print_introduction(training: Training, settings: Settings) -> None:
    parameters = sum(x.numel() for x in training.net.parameters())
    Console().print(
        f"A GPT of {parameters:,} parameters learns the source of Python's standard library: "
        f"{settings.workers} workers, {settings.steps} steps, seed {settings.seed}.\n",
        highlight=False,
    )


class Progress:
    """A bar per recipe on a terminal, a line now and then elsewhere."""

    def __init__(self, trainings: Sequence[Training], settings: Settings) -> None:
        self._steps = settings.steps
        self._console = Console(highlight=False)
        self._bars = rich.progress.Progress(
            "{task.description}",
            rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            "{task.fields[state]}",
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks = {
            training.plan.name: self._bars.add_task(
                f"{training.plan.name:<19}", total=settings.steps, state=""
            )
            for training in trainings
        }

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, training: Training) -> None:
        """Show the state after the training's latest step."""
        done = len(training.steps)
        state = _state(training)
        if self._console.is_terminal:
            self._bars.update(self._tasks[training.plan.name], completed=done, state=state)
        elif done % max(1, self._steps // PLAIN_LINES) == 0 or done == self._steps:
            self._console.print(f"{training.plan.name}: step {done}/{self._steps}, {state}")


def _state(training: Training) -> str:
    loss = statistics.fmean(step.loss for step in training.steps[-LAST:])
    sent = sum(step.pushed_nbytes + step.pulled_nbytes for step in training.steps)
    return f"loss {loss:.3f}, {sent / 1e6:,.1f} MB per worker"


def print_results(results: Sequence[Result], settings: Settings) -> None:
    """The table, and what it means in sentences."""
    console = Console(highlight=False)
    if not results:
        console.print("Stopped before the first step was done.")
        return
    done = results[0].steps
    stopped = "" if done == settings.steps else f"Stopped by Ctrl-C, of {settings.steps} steps. "
    console.print(f"\n{stopped}After {done} steps:\n")
    console.print(_table(results))
    for sentence in _sentences(results):
        console.print(sentence)


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("recipe")
    columns = ("rate", "loss", "held-out", "pushed", "pulled", "bytes", "step", "exchange")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        table.add_row(result.name, *_cells(result, dense=results[0]))
    return table


def _cells(result: Result, *, dense: Result) -> tuple[str, ...]:
    fewer = dense.nbytes / result.nbytes
    return (
        f"{result.learning_rate:g}",
        f"{result.final_loss:.3f}",
        f"{result.held_out_loss:.3f}",
        f"{result.pushed_nbytes / 1e3:,.1f} kB",
        f"{result.pulled_nbytes / 1e3:,.1f} kB",
        "1" if result is dense else f"1/{fewer:.0f}",
        f"{result.step_seconds * 1e3:.0f} ms",
        f"{result.exchange_seconds * 1e3:.0f} ms",
    )


def _sentences(results: Sequence[Result]) -> Iterator[str]:
    dense, *others = results
    yield (
        "\nrate: the best of a few learning rates, for each recipe on its own. "
        f"loss: mean of the last {LAST} steps, in nats per character. held-out: on text that was "
        "not trained on. pushed, pulled: frames of one worker in one step. step: all workers in "
        "turn, in one process; exchange is a part of it.\n"
    )
    for result in others:
        yield _verdict(result, dense)
    yield _waiting(results)
    yield (
        "\nNext: tw.Compressor is what the workers and the server used here. "
        "tw.VirtualCluster runs your own net as n workers in one process; tw.compress_ddp takes "
        "a DistributedDataParallel model."
    )


def _verdict(result: Result, dense: Result) -> str:
    fewer = dense.nbytes / result.nbytes
    gap = result.held_out_loss - dense.held_out_loss
    if abs(gap) <= CLOSE:
        place = "close to dense"
    else:
        place = f"{'behind' if gap > 0 else 'ahead of'} dense after {result.steps} steps"
    return f"{result.name}: {fewer:.0f} times fewer bytes, {place} (held-out loss {gap:+.3f})."


def _waiting(results: Sequence[Result]) -> str:
    waits = ", ".join(
        f"{result.nbytes * 8 / LINK_MEGABITS / 1e3:.0f} ms ({result.name})" for result in results
    )
    return (
        "Nothing went over a network here, so only the cost of compression shows. Calculated, not "
        f"measured: at {LINK_MEGABITS} Mbit/s the bytes of a step take {waits}."
    )
