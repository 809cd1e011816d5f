"""What ``thinwire train --list`` shows."""

from __future__ import annotations

import rich.box
import torch
from rich.console import Console
from rich.table import Table

from thinwire.lab.tasks.base import Task
from thinwire.lab.tasks.registry import all_tasks


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
        "\nneeds: a folder in the folder of data sets (--data, $THINWIRE_DATA). A run without it "
        "says what to download from where."
    )


def _cells(task: Task) -> tuple[str, ...]:
    with torch.device("meta"):  # only the shapes: the largest have millions of weights
        numel = sum(p.numel() for p in task.model.make().parameters())
    needs = task.feed.needs or "nothing"
    return (task.name, task.scale, f"{numel:,}", f"{task.training.epochs:g}", needs, task.about)
