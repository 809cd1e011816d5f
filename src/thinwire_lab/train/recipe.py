"""``complete_recipe``: fill in momentum, clipping and warm-up of a typed recipe from its task."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from thinwire.choice import delays
from thinwire.errors import ConfigError
from thinwire.feedback.base import chain, stages_of
from thinwire.feedback.clip import Clip
from thinwire.optim.takeover import momentum_of
from thinwire.recipe import Recipe
from thinwire.recipe_text import parse_recipe, read_recipe, written
from thinwire_lab.tasks.base import Task, Training
from thinwire_lab.tasks.optimizers import SGDSettings
from thinwire_lab.tasks.registry import all_tasks


def complete_recipe(text: str, training: Training, epoch_steps: int) -> str:
    """The recipe with all its settings, as ``read_recipe`` reads it.

    "dgc" and "dgc(0.01)" get the momentum of the task's optimizer, its clipping, done by each
    worker on its own gradient as in the paper, masking, also as in the paper, and the task's
    warm-up, unless the recipe sets them. A
    "warmup(TopK(0.001))" anywhere in a recipe gets the task's steps in the same way. With a recipe
    that delays parts of gradients or sends momentum, workers clip, too: to clip the mean would be
    to clip that.
    """
    tree = parse_recipe(text)
    call = ast.Call(tree, [], []) if isinstance(tree, ast.Name) else tree
    left_open = {
        "dgc": _of_dgc(training, epoch_steps),
        "warmup": {"steps": _warmup_steps(training, epoch_steps)},
    }
    for part in ast.walk(call):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
            _fill(part, left_open.get(part.func.id, {}))
    completed = ast.unparse(call)
    recipe, norm = read_recipe(completed), training.clip_norm
    if norm is None or clips(recipe) or not delays(recipe):
        return completed
    feedback = chain(Clip(norm), *stages_of(recipe.push_feedback))
    return written(replace(recipe, push_feedback=feedback))


Values = Mapping[str, float | int | None]


def _fill(call: ast.Call, values: Values) -> None:
    typed = {word.arg for word in call.keywords}
    for name, value in values.items():
        if name not in typed:
            call.keywords.append(ast.keyword(name, ast.Constant(value)))


def _of_dgc(training: Training, epoch_steps: int) -> Values:
    optimizer = training.optimizer
    # No other optimizer has a momentum that a recipe could keep.
    momentum = {"momentum": optimizer.momentum} if isinstance(optimizer, SGDSettings) else {}
    return {
        **momentum,
        "mask": True,
        "clip_norm": training.clip_norm,
        "warmup_steps": _warmup_steps(training, epoch_steps),
    }


def _warmup_steps(training: Training, epoch_steps: int) -> int:
    return round(training.sparse_epochs * epoch_steps)


def check_fits(recipe: Recipe, task: Task) -> None:
    """Refuse what ``take_over_momentum`` would refuse later, before the run has a log, and in terms
    of the command line."""
    kept, optimizer = momentum_of(recipe), task.training.optimizer
    if kept is None:
        return
    if not isinstance(optimizer, SGDSettings):
        raise ConfigError(
            f"{task.name} is not trained with SGD, so no recipe can keep its momentum, as dgc "
            "does: use another, such as clan(TopK(0.01)), or a task with SGD: "
            f"{', '.join(_with_sgd())}"
        )
    if optimizer.momentum and kept.nesterov:
        raise ConfigError(
            f"{task.name} has momentum without nesterov, but the recipe keeps it with nesterov: "
            "leave that out of the recipe, or give --momentum 0"
        )
    if optimizer.momentum != kept.momentum:
        raise ConfigError(
            f"{task.name} has momentum {optimizer.momentum:g}, but the recipe keeps "
            f"{kept.momentum:g}: leave that out of the recipe, or give --momentum {kept.momentum:g}"
        )


def _with_sgd() -> list[str]:
    tasks = (task for task in all_tasks() if isinstance(task.training.optimizer, SGDSettings))
    return list(dict.fromkeys(task.name for task in tasks))


def clips(recipe: Recipe) -> bool:
    """Whether workers clip their own gradients, so that the mean needs no clipping."""
    return any(isinstance(stage, Clip) for stage in stages_of(recipe.push_feedback))
