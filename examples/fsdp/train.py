"""Train a network that is sharded within each site, and compressed between sites.

    torchrun --standalone --nproc-per-node 4 examples/fsdp/train.py --replicas 2

Four processes are two replicas of two parts each. Thinwire is one line that compresses, and one
that keeps its state in the checkpoint.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire as tw

RECIPES = {
    "chosen": None,  # the one that fits the optimizer: here compressed Adam
    "bit": tw.adam(first=20, most_gap=32),
    "dense": tw.dense(),
}


@dataclass(frozen=True)
class Settings:
    replicas: int
    steps: int
    width: int
    recipe: str
    checkpoint: Path | None


def main() -> None:
    settings = parse()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    device = "cuda" if on_gpu else "cpu"
    shards = dist.get_world_size() // settings.replicas
    mesh = init_device_mesh(
        device, (settings.replicas, shards), mesh_dim_names=("replicate", "shard")
    )
    net = network(settings.width).to(device)
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh["shard"])
    fully_shard(net, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    compression = tw.compress_fsdp(
        net, RECIPES[settings.recipe], replicate=mesh["replicate"], optimizer=optimizer
    )
    first = resume(settings, net, optimizer, compression)
    train(settings, net, optimizer, compression, first)
    save(settings, net, optimizer, compression)
    if dist.get_rank() == 0:
        print(compression.stats())
    dist.destroy_process_group()


def parse() -> Settings:
    parser = argparse.ArgumentParser(description="Train a sharded network with compression.")
    parser.add_argument("--replicas", type=int, default=2, help="sites, with all of the network")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=512, help="of the hidden layers")
    parser.add_argument("--recipe", choices=RECIPES, default="chosen")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FOLDER",
        help="where to save at the end; a run goes on from what is there, also with other numbers "
        "of processes and replicas",
    )
    return Settings(**vars(parser.parse_args()))


def network(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def loss_of(net: nn.Module, step: int, rank: int) -> Tensor:
    """Each process has batches of its own."""
    generator = torch.Generator().manual_seed(1_000_000 * rank + step)
    x = torch.randn(32, 64, generator=generator)
    target = x[:, :10].abs().argmax(1)
    device = next(net.parameters()).device
    return nn.functional.cross_entropy(net(x.to(device)), target.to(device))


def train(
    settings: Settings,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    compression: tw.ModuleCompression,
    first: int,
) -> None:
    start = time.perf_counter()
    for step in range(first, first + settings.steps):
        loss = loss_of(net, step, dist.get_rank())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if dist.get_rank() == 0 and (step + 1) % 50 == 0:
            took = (time.perf_counter() - start) / (step + 1 - first)
            print(f"step {step + 1}: loss {loss.item():.4f}, {1000 * took:.1f} ms a step")


def save(
    settings: Settings,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    compression: tw.ModuleCompression,
) -> None:
    """Weights once, and what each replica owes."""
    if settings.checkpoint is not None:
        weights, moments = get_state_dict(net, optimizer)
        state = {"net": weights, "optimizer": moments, "compression": compression}
        save_checkpoint(state, checkpoint_id=settings.checkpoint)


def resume(
    settings: Settings,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    compression: tw.ModuleCompression,
) -> int:
    """How many steps were made before."""
    if settings.checkpoint is None or not settings.checkpoint.exists():
        return 0
    weights, moments = get_state_dict(net, optimizer)
    state = {"net": weights, "optimizer": moments}
    load_checkpoint(state, checkpoint_id=settings.checkpoint)
    set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=moments)
    compression.load_distributed(settings.checkpoint)
    return compression.steps


if __name__ == "__main__":
    main()
