"""Train with compressed gradients in Ray Train: two workers, wherever Ray puts them.

    python examples/ray/train.py

Thinwire is one line of ``train_worker``: ``tw.compress_ddp``.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import Tensor, nn
from torch.optim import SGD

import thinwire as tw

RECIPE = tw.dgc(ratio=0.01, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with compressed gradients in Ray Train.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--storage", default=None, help="where Ray keeps results; all nodes see it")
    settings = parser.parse_args()
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"steps": settings.steps},
        # Compressed frames travel over gloo, also next to NCCL, which Ray takes with GPUs.
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=settings.workers, use_gpu=False),
        run_config=RunConfig(name="thinwire", storage_path=settings.storage),
    )
    result = trainer.fit()
    metrics = result.metrics or {}
    print(f"saved in {result.checkpoint}")
    print(
        f"done: loss {metrics['loss']:.4f}, gradients {metrics['ratio']:.0f} times smaller than "
        f"float32, weights {metrics['digest']}"
    )


def train_worker(config: dict[str, Any]) -> None:
    """What each worker does."""
    rank = ray.train.get_context().get_world_rank()
    net = network()
    model = prepare_model(net)  # a DistributedDataParallel, if there are several workers
    optimizer = optimizer_for(net)
    compression = tw.compress_ddp(model, RECIPE, optimizer=optimizer)
    for step in range(config["steps"]):
        loss = loss_of(model, step, rank)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    metrics = {"loss": loss.item(), "ratio": compression.stats().ratio, "digest": digest(net)}
    with tempfile.TemporaryDirectory() as folder:
        # Workers owe each other different parts of past gradients, so each saves its own. Ray puts
        # the files of all into one checkpoint.
        torch.save(compression.state_dict(), f"{folder}/rank-{rank}.pt")
        if rank == 0:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, f"{folder}/model.pt")
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 1))


def optimizer_for(net: nn.Module) -> SGD:
    """An ordinary one: its momentum moves into the compression."""
    return SGD(net.parameters(), lr=0.02, momentum=0.9)


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    """The loss on this worker's batch of this step."""
    draw = torch.Generator().manual_seed(1_000_003 * step + rank)
    x = torch.randn(64, 32, generator=draw)
    return nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])


def digest(net: nn.Module) -> str:
    """A short name for these weights: two runs that agree print the same."""
    weights = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    return hashlib.sha256(weights).hexdigest()[:16]


if __name__ == "__main__":
    main()
