"""``Plan``: the settings of a run, and what follows from them: task, data, recipe, steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.recipe import Recipe
from thinwire.recipe_text import read_recipe
from thinwire_lab.seeding import seeded
from thinwire_lab.tasks.base import Task, Training, Work
from thinwire_lab.tasks.optimizers import SGDSettings
from thinwire_lab.tasks.registry import find_task
from thinwire_lab.train.recipe import check_fits, clips, complete_recipe
from thinwire_lab.train.settings import RunSettings


@dataclass(frozen=True, slots=True)
class Plan:
    """``task`` includes what the user changed; ``recipe_text`` is the complete recipe."""

    settings: RunSettings
    task: Task
    work: Work
    recipe_text: str
    steps: int

    @property
    def recipe(self) -> Recipe:
        return read_recipe(self.recipe_text)

    @property
    def out(self) -> Path:
        return Path(self.settings.out)

    def build(self) -> tuple[nn.Module, Optimizer]:
        """Make the network and optimizer that every run with this seed starts from. If workers do
        not clip their own gradients, the optimizer clips the mean."""
        with seeded(self.settings.seed):
            net = self.task.model.make()
        optimizer = self.task.training.optimizer.make(net)
        norm = self.task.training.clip_norm
        if norm is not None and not clips(self.recipe):
            _clip_mean(net, optimizer, norm)
        return net, optimizer

    @property
    def dense_nbytes(self) -> int:
        """Size of all gradients of a step, in 32 bits."""
        with torch.device("meta"):
            net = self.task.model.make()
        return dense_nbytes(net)

    def rate(self, step: int, losses: tuple[float, ...]) -> float:
        return self.task.training.rate(step, self.work.epoch_steps, losses)

    def record(self) -> dict[str, Any]:
        """What the run's result depends on, as plain values; where files are is left out."""
        run = asdict(self.settings)
        for field in ("data", "out", "recipe", "epochs", "learning_rate", "momentum", "save_steps"):
            del run[field]
        if self.settings.local_steps is None:  # as before there were any
            for field in ("local_steps", "delay", "fragments"):
                del run[field]
        return {
            **run,
            "recipe": self.recipe_text,
            "steps": self.steps,
            "epoch_steps": self.work.epoch_steps,
            "model": repr(self.task.model),
            "feed": repr(self.task.feed),
            "training": repr(self.task.training),
        }


def dense_nbytes(net: nn.Module) -> int:
    return 4 * sum(p.numel() for p in net.parameters() if p.requires_grad)


def prepare(settings: RunSettings) -> Plan:
    """Find the task, read its data and make the plan. Starts nothing."""
    task = find_task(settings.task, settings.scale)
    training = _changed(task.training, settings)
    data = None if settings.data is None else Path(settings.data)
    work = task.feed.open(data, workers=settings.workers, seed=settings.seed)
    steps = settings.steps or max(1, round(training.epochs * work.epoch_steps))
    if settings.steps is not None or settings.epochs is not None:
        training = training.lasting(steps / work.epoch_steps)
    task = replace(task, training=training)
    recipe_text = settings.recipe
    if settings.rounds is None:
        recipe_text = complete_recipe(settings.recipe, training, work.epoch_steps)
    plan = Plan(settings, task, work, recipe_text, steps)
    check_fits(plan.recipe, task)
    return plan


def _changed(training: Training, settings: RunSettings) -> Training:
    if settings.epochs is not None:
        training = training.lasting(settings.epochs)
    if settings.learning_rate is not None:
        training = replace(training, learning_rate=settings.learning_rate)
    if settings.momentum is not None:
        if not isinstance(training.optimizer, SGDSettings):
            raise ConfigError(f"{settings.task} is not trained with SGD: there is no momentum")
        optimizer = replace(training.optimizer, momentum=settings.momentum)
        training = replace(training, optimizer=optimizer)
    return training


def _clip_mean(net: nn.Module, optimizer: Optimizer, norm: float) -> None:
    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(net.parameters(), norm)

    optimizer.register_step_pre_hook(clip)
