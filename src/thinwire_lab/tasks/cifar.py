"""``cifar_tasks``: tasks on CIFAR-10.

DGC (section 4.1) trains ResNet-110 as He et al. did: 164 epochs, rate 0.1, divided by 10 at a half
and at three quarters, momentum 0.9, weight decay 1e-4, 32 pictures for each of 4 to 32 workers, and
4 epochs of warm-up for the sparsity. DoubleSqueeze trains ResNet-18 without momentum and decay;
batch, rate and schedule are from memory: they were not compared with its text.
"""

from __future__ import annotations

from dataclasses import replace

from thinwire_lab.models.convolutional import AlexNetSettings, ResNet18Settings, ResNetSettings
from thinwire_lab.tasks.base import Task, Training
from thinwire_lab.tasks.optimizers import Cosine, Divide, SGDSettings
from thinwire_lab.tasks.pictures import CifarFeed

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
