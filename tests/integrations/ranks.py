"""What all integrations are tested with: a task, a rank's report, and what it should compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import thinwire as tw
from tests.distributed.training import exchange_state
from thinwire.hooks.handle import Compression

RECIPE = tw.dgc(0.05, momentum=0.9)
LEARNING_RATE = 0.05
STEPS_PER_EPOCH = 3

Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


def like_torchrun() -> None:
    """Set what torchrun sets, for a process that tests.distributed.launch started.

    The libraries remember it, so a test ends its processes: ``run(..., keep=False)``.
    """
    rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(
        RANK=rank,
        LOCAL_RANK=rank,
        GROUP_RANK="0",
        WORLD_SIZE=ranks,
        LOCAL_WORLD_SIZE=ranks,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="1",  # never used: the process group is there already
        TORCHELASTIC_RUN_ID="test",
    )


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 5))


def data() -> DataLoader[Batch]:
    x = torch.randn(2 * 8 * STEPS_PER_EPOCH, 20, generator=torch.Generator().manual_seed(7))
    samples = [{"x": row, "y": (row[0] > 0).long()} for row in x]
    return DataLoader(cast("Dataset[Batch]", samples), batch_size=8)


def loss_of(net: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(net(batch["x"]), batch["y"])


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def weights(net: nn.Module) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in net.parameters()]


def residuals(compression: Compression) -> bytes:
    """Everything that this rank alone remembers of its gradients."""
    found = _tensors(exchange_state(compression))
    return b"".join(tensor.numpy().tobytes() for tensor in found)


def _tensors(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in _tensors(value)]
    return []


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank ended with, and its batches. No tensors: a queue would share their memory."""

    weights: list[bytes]
    residuals: bytes
    steps: int
    batches: list[dict[str, NDArray[Any]]]


def report(net: nn.Module, compression: Compression | None, batches: Sequence[Batch]) -> Report:
    assert compression is not None
    return Report(
        weights(net),
        residuals(compression),
        compression.steps,
        [{name: tensor.numpy() for name, tensor in batch.items()} for batch in batches],
    )


def virtual(net: nn.Module, reports: Sequence[Report], loss_of: Loss) -> list[bytes]:
    """The weights that the virtual cluster gets from the batches that the ranks trained with."""
    optimizer = tw.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    cluster = tw.VirtualCluster(net, optimizer, RECIPE, workers=len(reports))
    for step in range(len(reports[0].batches)):

        def loss(worker: int, step: int = step) -> Tensor:
            batch = reports[worker].batches[step]
            return loss_of(net, {name: torch.from_numpy(array) for name, array in batch.items()})

        cluster.step(loss)
    return weights(net)


def check_whole(reports: Sequence[Report], net: nn.Module, loss_of: Loss) -> None:
    """Two epochs: both ranks did what the virtual cluster does, each with its own residuals."""
    assert [one.steps for one in reports] == [2 * STEPS_PER_EPOCH] * 2
    assert reports[0].weights == reports[1].weights
    assert reports[0].weights == virtual(net, reports, loss_of)
    assert reports[0].residuals != reports[1].residuals


def check_resumed(resumed: Sequence[Report], whole: Sequence[Report]) -> None:
    """The second epoch alone, after a checkpoint of the first: bit for bit the same end."""
    assert [len(one.batches) for one in resumed] == [STEPS_PER_EPOCH] * 2
    assert [one.steps for one in resumed] == [2 * STEPS_PER_EPOCH] * 2
    assert [one.weights for one in resumed] == [one.weights for one in whole]
    assert [one.residuals for one in resumed] == [one.residuals for one in whole]
