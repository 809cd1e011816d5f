"""One training run: a task, a recipe and a seed, with one process for each worker, over gloo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed import launch
from thinwire_lab.data.fashion import read_fashion
from thinwire_lab.data.files import Pictures
from thinwire_lab.data.text import draw, read_corpus
from thinwire_lab.models.convolutional import build_cnn
from thinwire_lab.models.language import GPTSettings, build_gpt, next_token_loss

RUN_SECONDS = 3000.0


@dataclass(frozen=True, slots=True)
class Task:
    """A network and its data. ``draw`` makes the batch of one worker; ``logits_of`` gives logits
    and targets of all held-out data."""

    build: Callable[[int], nn.Module]
    draw: Callable[[torch.Generator], Any]
    loss_of: Callable[[nn.Module, Any], Tensor]
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


@cache
def fashion_task() -> Task:
    data = read_fashion()

    def loss_of(net: nn.Module, batch: Pictures) -> Tensor:
        return functional.cross_entropy(net(batch.pixels), batch.labels)

    def logits_of(net: nn.Module) -> tuple[Tensor, Tensor]:
        return net(data.test.pixels), data.test.labels

    return Task(
        lambda seed: build_cnn(seed=seed),
        lambda generator: data.training.draw(16, generator),
        loss_of,
        logits_of,
    )


@cache
def text_task() -> Task:
    corpus, settings = read_corpus(), GPTSettings(context=16, layers=1, heads=2, width=16)
    held_out = draw(corpus.held_out, 1024, settings.context, torch.Generator().manual_seed(0))

    def logits_of(net: nn.Module) -> tuple[Tensor, Tensor]:
        return net(held_out[:, :-1]).flatten(0, 1), held_out[:, 1:].flatten()

    return Task(
        lambda seed: build_gpt(settings, seed=seed),
        lambda generator: draw(corpus.training, 8, settings.context, generator),
        next_token_loss,
        logits_of,
    )


TASKS = {"fashion": fashion_task, "text": text_task}


def train(
    task: str, length: Length, recipe: tw.Recipe, *, momentum: float, seed: int, workers: int
) -> Outcome:
    """Train from scratch. ``momentum`` is the optimizer's. Equal seeds have equal first weights
    and equal batches."""
    results = launch.run(
        train_rank,
        task,
        length,
        recipe,
        momentum,
        seed,
        ranks=workers,
        deadline_seconds=RUN_SECONDS,
    )
    outcome: Outcome = results[0]
    return outcome


def train_rank(name: str, length: Length, recipe: tw.Recipe, momentum: float, seed: int) -> Outcome:
    task = TASKS[name]()
    net = task.build(seed)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=length.rate(0), momentum=momentum)
    generator = torch.Generator().manual_seed(seed)
    nbytes = [0]
    with tw.compress_ddp(model, recipe, optimizer=optimizer, seed=seed) as compression:
        for step in range(length.steps):
            optimizer.param_groups[0]["lr"] = length.rate(step)
            batches = [task.draw(generator) for _ in range(dist.get_world_size())]
            optimizer.zero_grad()
            loss = task.loss_of(model, batches[dist.get_rank()])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step >= length.steps - 2:
                stats = compression.stats()
                nbytes.append(stats.pushed_nbytes + stats.pulled_nbytes)
    return Outcome(*score(task, net), nbytes[-1] / length.steps, nbytes[-1] - nbytes[-2])


@torch.no_grad()
def score(task: Task, net: nn.Module) -> tuple[float, float]:
    logits, targets = task.logits_of(net)
    right = (logits.argmax(1) == targets).float().mean()
    return float(functional.cross_entropy(logits, targets)), float(right)
