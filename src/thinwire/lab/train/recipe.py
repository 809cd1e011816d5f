"""Recipes as they are typed for a task: what DGC leaves open is filled in from its settings."""

from __future__ import annotations

import ast

from thinwire.errors import ConfigError
from thinwire.feedback.base import stages_of
from thinwire.feedback.clip import Clip
from thinwire.lab.tasks.base import Training
from thinwire.recipe import Recipe
from thinwire.spelling import EXAMPLES, read_recipe


def complete_recipe(text: str, training: Training, epoch_steps: int) -> str:
    """The recipe's full spelling, which ``read_recipe`` can read.

    "dgc" and "dgc(0.01)" get the momentum of the task's optimizer, its clipping, done by each
    worker on its own gradient as in the paper, and its warm-up, unless they say something else.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ConfigError(f"recipe {text!r}: {error.msg}; examples: {EXAMPLES}") from error
    call = ast.Call(tree, [], []) if isinstance(tree, ast.Name) else tree
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "dgc":
        given = {word.arg for word in call.keywords}
        for name, value in _of_dgc(training, epoch_steps).items():
            if name not in given:
                call.keywords.append(ast.keyword(name, ast.Constant(value)))
    spelled = ast.unparse(call)
    read_recipe(spelled)
    return spelled


def _of_dgc(training: Training, epoch_steps: int) -> dict[str, float | int | None]:
    return {
        "momentum": training.optimizer.momentum,
        "clip_norm": training.clip_norm,
        "warmup_steps": round(training.sparse_epochs * epoch_steps),
    }


def clips(recipe: Recipe) -> bool:
    """Whether workers clip their own gradients, so that nobody has to clip the mean."""
    return any(isinstance(stage, Clip) for stage in stages_of(recipe.push_feedback))
