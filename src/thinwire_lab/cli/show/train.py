"""What ``thinwire train`` prints: progress while it runs, then the result."""

from __future__ import annotations

import time

import rich.box
import rich.progress
import torch
from rich.console import Console
from rich.table import Table

from thinwire.cli.show.progress import ProgressDisplay
from thinwire_lab.tasks.base import Task
from thinwire_lab.tasks.registry import all_tasks
from thinwire_lab.train.events import Epoch, Evaluation, Event, Outcome, Progress, Warned, last
from thinwire_lab.train.plan import Plan
from thinwire_lab.train.run import Result


def print_tasks() -> None:
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in ("task", "scale"):
        table.add_column(column, no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("epochs", justify="right", no_wrap=True)
    table.add_column("needs", no_wrap=True)
    table.add_column("what it is")
    for task in all_tasks():
        table.add_row(*_cells(task))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "\nneeds: a subfolder of the folder of data sets (--data, $THINWIRE_DATA). Without it, the "
        "error of a run names what to download from where."
    )


def _cells(task: Task) -> tuple[str, ...]:
    with torch.device("meta"):  # only the shapes: the largest have millions of weights
        numel = sum(p.numel() for p in task.model.make().parameters())
    needs = task.feed.needs or "nothing"
    return (task.name, task.scale, f"{numel:,}", f"{task.training.epochs:g}", needs, task.about)


PLAIN_SECONDS = 10.0
"""Without a terminal, progress is printed no more often than this; evaluations always are."""


def print_introduction(plan: Plan, *, start: int) -> None:
    settings, epochs = plan.settings, plan.task.training.epochs
    begins = f"goes on after step {start} of" if start else "has"
    wrapped_console().print(
        f"{settings.task}, scale {settings.scale} ({plan.task.about}): {settings.workers} "
        f"{settings.backend} workers, seed {settings.seed}. Recipe: {plan.recipe_text}. The run "
        f"{begins} {plan.steps} steps ({epochs:.4g} epochs); it is kept in {settings.out}.",
    )


def wrapped_console() -> Console:
    """A console that wraps lines only on a terminal: elsewhere programs read them."""
    console = Console(highlight=False)
    console.soft_wrap = not console.is_terminal
    return console


class TrainProgress(ProgressDisplay):
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, plan: Plan, *, start: int) -> None:
        self._steps = plan.steps
        self._console = wrapped_console()
        self._printed = time.monotonic()
        self._first: tuple[int, float] | None = None
        self._score = ""
        progress = rich.progress.Progress(
            rich.progress.BarColumn(bar_width=10),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            "{task.fields[state]}",
            console=self._console,
            disable=not self._console.is_terminal,
        )
        super().__init__(progress)
        self._bar = self._progress.add_task("", total=plan.steps, completed=start, state="")

    def show(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._show_step(event)
        elif isinstance(event, Evaluation):
            self._score = f", {event.metric} {event.value:.2f}"
            self._console.print(f"step {event.step}, epoch {event.epoch:.4g}: {score(event)}")
        elif isinstance(event, Warned):
            self._console.print(f"worker {event.worker} warns: {event.text}", style="yellow")

    def _show_step(self, event: Progress) -> None:
        left = self._left(event.step, time.monotonic())
        loss = f"loss {event.loss:.3f}{self._score}"
        if self._console.is_terminal:
            pushed, pulled = event.pushed_nbytes / 1e3, event.pulled_nbytes / 1e3
            state = f"{loss}, {pushed:,.0f} + {pulled:,.0f} kB, 1/{event.ratio:.0f}"
            self._progress.update(self._bar, completed=event.step, state=state)
        elif time.monotonic() - self._printed > PLAIN_SECONDS:
            self._printed = time.monotonic()
            line = f"step {event.step}/{self._steps}: {loss}, {traffic(event)}{left}"
            self._console.print(line)

    def _left(self, step: int, now: float) -> str:
        """The time left; "" for the first step, which includes the start of processes."""
        if self._first is None:
            self._first = step, now
            return ""
        first, began = self._first
        seconds = round((now - began) / (step - first) * (self._steps - step))
        return f", {seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"


def score(event: Evaluation | Outcome) -> str:
    unit = " %" if event.metric == "accuracy" else ""
    return f"loss {event.loss:.4f}, {event.metric} {event.value:.2f}{unit}"


def traffic(event: Progress | Epoch) -> str:
    pushed, pulled = (x / 1e3 for x in (event.pushed_nbytes, event.pulled_nbytes))
    fewer = f"1/{event.ratio:.0f} of dense" if event.ratio >= 1.5 else "about as much as dense"
    return f"{pushed:,.1f} kB pushed, {pulled:,.1f} kB pulled, {fewer}"


def print_result(plan: Plan, result: Result) -> None:
    """Print the result, and how to resume if it was stopped."""
    console = wrapped_console()
    outcome, epoch = last(result.events, Outcome), last(result.events, Epoch)
    if outcome is not None:
        console.print(f"After {outcome.step} steps, on test data: {score(outcome)}.")
    if epoch is not None:
        console.print(
            f"In the mean of all steps a worker had {traffic(epoch)}. {epoch.seconds:,.1f} s of "
            "training.",
        )
    if not result.finished:
        console.print(
            f"Stopped. Everything is kept in {plan.settings.out}: the same command goes on.",
        )
