"""What ``thinwire demo`` prints: progress while it runs, then tables and sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import rich.box
import rich.progress
from rich.table import Table

from thinwire.cli.show.progress import ProgressDisplay
from thinwire_lab.cli.show.train import wrapped_console
from thinwire_lab.demo import (
    ASSUMED,
    CALCULATED,
    LEGEND,
    MEASURED,
    Result,
    Way,
    calculated,
    measured,
    verdicts,
)
from thinwire_lab.train.events import Event, Progress, Warned
from thinwire_lab.train.plan import Plan

PLAIN_LINES = 5
"""How many lines of progress a recipe prints without a terminal."""

NEXT = (
    "Next: tw.compress_ddp takes a DistributedDataParallel model. tw.Server and tw.Client are "
    "what ran here."
)


def introduction(plan: Plan) -> str:
    settings = plan.settings
    return (
        f"A GPT of {plan.dense_nbytes // 4:,} parameters learns the source of Python's standard "
        f"library: a server and {settings.workers} workers, each a process, {plan.steps} steps, "
        f"seed {settings.seed}."
    )


def print_introduction(plan: Plan) -> None:
    wrapped_console().print(f"{introduction(plan)}\n")


class DemoProgress(ProgressDisplay):
    """A bar for each recipe on a terminal, a line now and then elsewhere."""

    def __init__(self, plans: Sequence[tuple[Way, Plan]]) -> None:
        self._steps = plans[0][1].steps
        self._console = wrapped_console()
        progress = rich.progress.Progress(
            "{task.description}",
            rich.progress.BarColumn(bar_width=16),
            rich.progress.MofNCompleteColumn(),
            "{task.fields[state]}",
            console=self._console,
            disable=not self._console.is_terminal,
        )
        super().__init__(progress)
        self._tasks = {
            way.name: self._progress.add_task(f"{way.name:<19}", total=self._steps, state="")
            for way, _ in plans
        }

    def follow(self, way: Way) -> Callable[[Event], None]:
        """Show the events of this recipe from now on."""
        self._progress.update(self._tasks[way.name], state="processes start")

        def show(event: Event) -> None:
            if isinstance(event, Progress):
                self._show(way.name, event)
            elif isinstance(event, Warned):
                self._console.print(f"{way.name}: worker {event.worker} warns: {event.text}")

        return show

    def _show(self, name: str, event: Progress) -> None:
        sent = (event.pushed_nbytes + event.pulled_nbytes) * event.step / 1e6
        state = f"loss {event.loss:.2f}, {sent:,.1f} MB a worker"
        if self._console.is_terminal:
            self._progress.update(self._tasks[name], completed=event.step, state=state)
        elif event.step % max(1, self._steps // PLAIN_LINES) == 0 or event.step == self._steps:
            self._console.print(f"{name}: step {event.step}/{self._steps}, {state}")


def print_results(results: Sequence[Result], *, interrupted: bool) -> None:
    """Print the tables, and what they mean in sentences."""
    console = wrapped_console()
    if interrupted:
        console.print("\nStopped. All processes are gone.")
    if not results:
        console.print("Nothing was finished yet, so there is nothing to show.")
        return
    console.print(f"\nAfter {results[0].steps} steps:\n")
    console.print(_table(MEASURED, [measured(result, results[0]) for result in results]))
    console.print(f"\n{LEGEND}\n", style="dim")
    console.print(_table(CALCULATED, [calculated(result) for result in results]))
    console.print(f"\n{ASSUMED}\n", style="dim")
    for sentence in (*verdicts(results), f"\n{NEXT}"):
        console.print(sentence)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
