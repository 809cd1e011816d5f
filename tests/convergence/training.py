"""One training run: a task, a recipe and a seed, with two workers in this process."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import thinwire as tw
from thinwire.lab import cnn, gpt
from thinwire.lab.data.fashion import Fashion
from thinwire.lab.text import Corpus, draw

WORKERS = 2


@dataclass(frozen=True, slots=True)
class Task:
    """A network and its data. ``loss_of`` draws the batch of one worker; ``logits_of`` gives
    logits and targets of all held-out data."""

    build: Callable[[int], nn.Module]
    loss_of: Callable[[nn.Module, torch.Generator], Tensor]
    logits_of: Callable[[nn.Module], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Length:
    """How far and how long to go. The rate rises during the first twentieth of all steps, then
    falls to zero in a straight line."""

    steps: int
    learning_rate: float

    def rate(self, step: int) -> float:
        rise, fall = (step + 1) / (self.steps / 20), (self.steps - step) / (self.steps * 19 / 20)
        return self.learning_rate * min(rise, fall)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Held-out loss in nats, the fraction that is right, and bytes that one worker sends and
    receives: in the mean of all steps, and in the last one."""

    loss: float
    accuracy: float
    mean_nbytes: float
    last_nbytes: float


def fashion_task(data: Fashion, *, rows: int) -> Task:
    def loss_of(net: nn.Module, generator: torch.Generator) -> Tensor:
        batch = data.training.draw(rows, generator)
        return functional.cross_entropy(net(batch.pixels), batch.labels)

    def logits_of(net: nn.Module) -> tuple[Tensor, Tensor]:
        return net(data.test.pixels), data.test.labels

    return Task(lambda seed: cnn.build(seed=seed), loss_of, logits_of)


def text_task(corpus: Corpus, settings: gpt.GPTSettings, *, rows: int) -> Task:
    held_out = draw(corpus.held_out, 1024, settings.context, torch.Generator().manual_seed(0))

    def loss_of(net: nn.Module, generator: torch.Generator) -> Tensor:
        return gpt.next_token_loss(net, draw(corpus.training, rows, settings.context, generator))

    def logits_of(net: nn.Module) -> tuple[Tensor, Tensor]:
        return net(held_out[:, :-1]).flatten(0, 1), held_out[:, 1:].flatten()

    return Task(lambda seed: gpt.build(settings, seed=seed), loss_of, logits_of)


def train(task: Task, length: Length, recipe: tw.Recipe, *, momentum: float, seed: int) -> Outcome:
    """Train from scratch. ``momentum`` is the optimizer's. Equal seeds have equal first weights
    and equal batches."""
    net = task.build(seed)
    optimizer = torch.optim.SGD(net.parameters(), momentum=momentum)
    cluster = tw.VirtualCluster(net, optimizer, recipe, workers=WORKERS, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    nbytes = []
    for step in range(length.steps):
        optimizer.param_groups[0]["lr"] = length.rate(step)
        cluster.step(lambda worker: task.loss_of(net, generator))
        assert cluster.last is not None
        nbytes.append(cluster.last.pushed_nbytes + cluster.last.pulled_nbytes)
    return Outcome(*score(task, net), statistics.fmean(nbytes), nbytes[-1])


@torch.no_grad()
def score(task: Task, net: nn.Module) -> tuple[float, float]:
    logits, targets = task.logits_of(net)
    right = (logits.argmax(1) == targets).float().mean()
    return float(functional.cross_entropy(logits, targets)), float(right)
