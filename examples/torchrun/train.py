"""Train with compressed gradients under torchrun, and go on after any process was killed.

    torchrun --standalone --nproc-per-node 4 --max-restarts 2 examples/torchrun/train.py

Thinwire is four lines here: one that compresses, two that keep its state with the checkpoints, and
one that prints what it saved. The rest is what a DDP script that survives restarts needs anyway.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import thinwire as tw

RECIPES = {
    "chosen": None,  # the one that fits the optimizer: here it sends the momentum in 1 bit
    "dgc": tw.dgc(ratio=0.01, momentum=0.9),
    "dense": tw.dense(),
}


@dataclass(frozen=True)
class Settings:
    steps: int
    save_every: int
    checkpoints: Path
    recipe: str
    width: int


def main() -> None:
    settings = parse()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    run = Run(settings, device)
    run.resume()
    run.train()
    dist.destroy_process_group()


def parse() -> Settings:
    parser = argparse.ArgumentParser(description="Train with compressed gradients under torchrun.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument(
        "--checkpoints",
        type=Path,
        default=Path("checkpoints"),
        metavar="FOLDER",
        help="seen by all hosts; a run goes on from the newest checkpoint in it",
    )
    parser.add_argument("--recipe", choices=RECIPES, default="chosen")
    parser.add_argument("--width", type=int, default=256, help="of the hidden layers")
    return Settings(**vars(parser.parse_args()))


class Run:
    """One process's share of the training."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.rank = dist.get_rank()
        self.net = network(settings.width).to(device)
        self.model = DistributedDataParallel(self.net)
        self.optimizer = optimizer_for(self.net)
        self.compression = tw.compress_ddp(
            self.model, RECIPES[settings.recipe], optimizer=self.optimizer
        )
        self.step = 0

    def train(self) -> None:
        start, first = time.perf_counter(), self.step
        while self.step < self.settings.steps:
            loss = loss_of(self.model, self.step, self.rank)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.step += 1
            if self.step % self.settings.save_every == 0 or self.step == self.settings.steps:
                self.save()
                seconds = (time.perf_counter() - start) / (self.step - first)
                self.say(f"loss {loss:.4f}, {1000 * seconds:.1f} ms a step, saved")
        stats = self.compression.stats()
        if stats.steps:
            self.say(
                f"done: sent {stats.sent_nbytes / 1e6:.1f} MB and received "
                f"{stats.received_nbytes / 1e6:.1f} MB; gradients were {stats.ratio:.0f} times "
                "smaller than float32"
            )

    def save(self) -> None:
        """Write a checkpoint whole or not at all, whichever process is killed when."""
        folder = checkpoint(self.settings, self.step)
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        # Ranks owe each other different parts of past gradients, so each saves its own.
        torch.save(self.compression.state_dict(), partial / f"rank-{self.rank}.pt")
        if self.rank == 0:
            state = {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, partial / "model.pt")
        dist.barrier()  # all files are written
        if self.rank == 0 and not folder.exists():
            partial.rename(folder)
        dist.barrier()  # no rank goes on before this checkpoint is complete

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        # One rank looks, the others believe it: file systems do not show all hosts the same.
        newest = torch.tensor(newest_step(self.settings), device=self.device)
        dist.broadcast(newest, src=0)
        if not newest:
            self.say(f"begin, {dist.get_world_size()} processes, {self.settings.recipe}")
            return
        self.step = int(newest)
        folder = checkpoint(self.settings, self.step)
        state = torch.load(folder / "model.pt", map_location=self.device, weights_only=True)
        self.net.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        # The states of all ranks, so that another number of processes can go on as well.
        files = sorted(folder.glob("rank-*.pt"))
        self.compression.load_state_dicts(torch.load(one, weights_only=True) for one in files)
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.say(f"go on from {folder}, restart {restarts}")

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(f"step {self.step:>5} of {self.settings.steps}: {text}", flush=True)


def network(width: int) -> nn.Sequential:
    torch.manual_seed(0)  # the same everywhere, though DDP would also send rank 0's
    return nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )


def optimizer_for(net: nn.Module) -> SGD:
    """An ordinary one. Its momentum is what travels; with "dgc" it moves into the compression."""
    return SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    """The loss on this rank's batch of this step.

    Drawn by step and rank, so that a restarted run sees what it would have seen. With a data loader
    call ``sampler.set_epoch`` and skip the batches before the step.
    """
    device = next(model.parameters()).device
    draw = torch.Generator().manual_seed(1_000_003 * step + rank)
    x = torch.randn(64, 32, generator=draw).to(device)
    y = (x[:, :1] * x[:, 1:2] + torch.sin(3 * x[:, 2:3])).detach()
    return nn.functional.mse_loss(model(x), y)


def checkpoint(settings: Settings, step: int) -> Path:
    return settings.checkpoints / f"step-{step:06}"


def newest_step(settings: Settings) -> int:
    """The step of the newest complete checkpoint; 0 if there is none."""
    found = settings.checkpoints.glob("step-*")
    return max((int(one.name[5:]) for one in found if not one.suffix), default=0)


if __name__ == "__main__":
    main()
