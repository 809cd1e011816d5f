"""``find_task``: all tasks by name and scale."""

from __future__ import annotations

import difflib

from thinwire.errors import ConfigError
from thinwire_lab.tasks.base import Task
from thinwire_lab.tasks.ours import battery_tasks, local_tasks, our_tasks
from thinwire_lab.tasks.penn import penn_tasks
from thinwire_lab.tasks.pictures import cifar_tasks


def all_tasks() -> tuple[Task, ...]:
    return (*our_tasks(), *cifar_tasks(), *penn_tasks(), *battery_tasks(), *local_tasks())


def find_task(name: str, scale: str) -> Task:
    """ConfigError lists the tasks or scales that exist."""
    scales = {task.scale: task for task in all_tasks() if task.name == name}
    if not scales:
        names = list(dict.fromkeys(task.name for task in all_tasks()))
        nearest = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else "."
        raise ConfigError(f"no task is named {name!r}{hint} Tasks: {', '.join(names)}")
    if scale not in scales:
        raise ConfigError(f"{name} has no scale {scale!r}, expected one of {', '.join(scales)}")
    return scales[scale]
