"""``PictureWork`` and ``cifar_tasks``: image classification, and its tasks on CIFAR-10.

Workers share all pictures in every epoch.

DGC (section 4.1) trains ResNet-110 as He et al. did: 164 epochs, rate 0.1, divided by 10 at a half
and at three quarters, momentum 0.9, weight decay 1e-4, 32 pictures for each of 4 to 32 workers, and
4 epochs of warm-up for the sparsity. DoubleSqueeze trains ResNet-18 without momentum and decay;
batch, rate and schedule are from memory: they were not compared with its text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.checks import check_whole
from thinwire.errors import ConfigError
from thinwire_lab.data import cifar, fashion
from thinwire_lab.data.files import PictureSet
from thinwire_lab.models.convolutional import AlexNetSettings, ResNet18Settings, ResNetSettings
from thinwire_lab.seeding import generator_from, seeded
from thinwire_lab.tasks.base import Memory, Score, Task, Training, accuracy, in_parts
from thinwire_lab.tasks.optimizers import Cosine, Divide, SGDSettings

PADDING = 4
SCORED_ROWS = 500
"""How many pictures are scored at once."""


@dataclass(frozen=True, slots=True)
class CifarFeed:
    """``rows`` for each worker and step. ``training_rows`` and ``test_rows``: use only the first
    pictures (None: all). ``augment``: shift by up to four pixels and mirror, at random."""

    rows: int
    training_rows: int | None = None
    test_rows: int | None = None
    augment: bool = True
    needs: ClassVar[str] = cifar.SOURCE.name

    def open(self, data: Path | None, *, workers: int, seed: int) -> PictureWork:
        pictures = _first(cifar.read_cifar(data), self.training_rows, self.test_rows)
        change = augmented if self.augment else unchanged
        return PictureWork(pictures, self.rows, change, cifar.standardised, workers, seed)


@dataclass(frozen=True, slots=True)
class FashionFeed:
    rows: int
    training_rows: int | None = None
    test_rows: int | None = None
    needs: ClassVar[str] = fashion.SOURCE.name

    def open(self, data: Path | None, *, workers: int, seed: int) -> PictureWork:
        pictures = _first(fashion.read_fashion(data), self.training_rows, self.test_rows)
        return PictureWork(pictures, self.rows, unchanged, Tensor.float, workers, seed)


def _first(pictures: PictureSet, training_rows: int | None, test_rows: int | None) -> PictureSet:
    return PictureSet(
        pictures.training.choose(slice(training_rows)), pictures.test.choose(slice(test_rows))
    )


Change = Callable[[Tensor, torch.Generator], Tensor]


def unchanged(pixels: Tensor, generator: torch.Generator) -> Tensor:
    return pixels


def augmented(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Shift by up to four pixels each way, padded with zeros, and mirror half of them."""
    rows, _, height, width = pixels.shape
    padded = functional.pad(pixels, (PADDING,) * 4)
    places = torch.randint(2 * PADDING + 1, (2, rows, 1), generator=generator)
    mirrored = torch.randint(2, (rows, 1), generator=generator).bool()
    down, along = places[0] + torch.arange(height), places[1] + torch.arange(width)
    along = torch.where(mirrored, along.flip(1), along)
    picture = torch.arange(rows).view(rows, 1, 1)
    cut = padded[picture, :, down.unsqueeze(2), along.unsqueeze(1)]
    return cut.permute(0, 3, 1, 2)


class PictureWork:
    """See ``Work``. Every epoch has its own order; an incomplete last batch is left out."""

    def __init__(
        self,
        pictures: PictureSet,
        rows: int,
        change: Change,
        prepare: Callable[[Tensor], Tensor],
        workers: int,
        seed: int,
    ) -> None:
        check_whole(rows, least=1, owner="pictures", field="rows")
        self._pictures, self._change, self._prepare = pictures, change, prepare
        self._rows, self._workers, self._seed = rows, workers, seed
        count = pictures.training.labels.numel()
        self.epoch_steps = count // (rows * workers)
        if not self.epoch_steps:
            raise ConfigError(f"{count} pictures are too few for {workers} workers, {rows} each")
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def loss(self, net: nn.Module, *, step: int, worker: int, memory: Memory) -> Tensor:
        batch = self._pictures.training.choose(self._numbers(step, worker))
        pixels = self._change(batch.pixels, generator_from(self._seed, 1, step, worker))
        with seeded(self._seed, 2, step, worker):
            return functional.cross_entropy(net(self._prepare(pixels)), batch.labels)

    def _numbers(self, step: int, worker: int) -> Tensor:
        epoch, place = divmod(step, self.epoch_steps)
        if self._order[0] != epoch:
            count = self._pictures.training.labels.numel()
            order = torch.randperm(count, generator=generator_from(self._seed, 0, epoch))
            self._order = epoch, order
        start = (place * self._workers + worker) * self._rows
        return self._order[1][start : start + self._rows]

    def validate(self, net: nn.Module) -> Score:
        return self.test(net)

    def test(self, net: nn.Module) -> Score:
        pixels, labels = self._pictures.test.pixels, self._pictures.test.labels
        loss, right = 0.0, 0
        for part, kinds in zip(
            in_parts(pixels, SCORED_ROWS), in_parts(labels, SCORED_ROWS), strict=True
        ):
            logits = net(self._prepare(part))
            loss += float(functional.cross_entropy(logits, kinds, reduction="sum"))
            right += int((logits.argmax(1) == kinds).sum())
        return accuracy(loss / labels.numel(), right / labels.numel())


DEPTHS = (20, 32, 56, 110)

_SMOKE = CifarFeed(rows=8, training_rows=512, test_rows=200)
_SMALL = CifarFeed(rows=8, training_rows=20_000, test_rows=5_000)
# For more steps in the same time: at 0.1 %, gradients stay in the residual for a thousand steps.
_MORE_STEPS = replace(_SMALL, rows=4)
_HE = SGDSettings(momentum=0.9, weight_decay=1e-4)
_HE_FALLS = Divide(at=(82 / 164, 123 / 164))


def cifar_tasks() -> tuple[Task, ...]:
    resnets = (task for depth in DEPTHS for task in _resnet(depth))
    return (*resnets, *_resnet18(), *_alexnet())


def _resnet(depth: int) -> tuple[Task, ...]:
    # He et al. began ResNet-110 with a tenth of the rate for 400 steps: an epoch of 128 has 390.
    rise = 1.0 if depth == 110 else 0.0
    paper = Training(164, 0.1, _HE, _HE_FALLS, rise_epochs=rise, sparse_epochs=4)
    small = Training(4, 0.05, _HE, Cosine(), rise_epochs=0.25, sparse_epochs=0.5)
    smoke = Training(1, 0.1, _HE, _HE_FALLS, sparse_epochs=0.25)
    name, model = f"resnet{depth}", ResNetSettings(depth)
    tiny, thin = ResNetSettings(8), ResNetSettings(depth, width=8)
    return (
        Task(name, "smoke", "ResNet-8 and 512 pictures: to see it run", tiny, _SMOKE, smoke),
        Task(name, "small", "8 channels, 20,000 pictures, batch 4", thin, _MORE_STEPS, small),
        Task(name, "paper", "as He et al. and DGC", model, CifarFeed(rows=32), paper),
    )


def _resnet18() -> tuple[Task, ...]:
    plain = SGDSettings()
    paper = Training(320, 0.1, plain, Divide(at=(0.5,)))
    small = Training(4, 0.1, plain, Cosine(), rise_epochs=0.25)
    smoke = Training(1, 0.05, plain, Divide(at=(0.5,)))
    thin, thinnest = ResNet18Settings(width=16), ResNet18Settings(width=4)
    return (
        Task("resnet18", "smoke", "4 channels and 512 pictures", thinnest, _SMOKE, smoke),
        Task("resnet18", "small", "16 channels, 20,000 pictures, batch 8", thin, _SMALL, small),
        Task(
            "resnet18",
            "paper",
            "as DoubleSqueeze",
            ResNet18Settings(),
            CifarFeed(rows=256),
            paper,
        ),
    )


def _alexnet() -> tuple[Task, ...]:
    sgd = SGDSettings(momentum=0.9, weight_decay=5e-4)
    small = Training(4, 0.01, sgd, Cosine(), rise_epochs=0.25, sparse_epochs=0.5)
    smoke = Training(1, 0.01, sgd, Cosine())
    tiny = AlexNetSettings(hidden=32)
    return (
        Task("alexnet", "smoke", "narrow, and 512 pictures", tiny, _SMOKE, smoke),
        Task("alexnet", "small", "ours: in no paper", AlexNetSettings(), _SMALL, small),
    )
