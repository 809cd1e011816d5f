"""A worker of parameter servers. Each runs anywhere that reaches the servers; no process group.

    thinwire serve --workers 2 --recipe doublesqueeze --log-dir ps0
    python train.py --rank 0 --workers 2 &
    python train.py --rank 1 --workers 2

Start a worker again with the same command: it goes on from its checkpoint, and catches up with what
the others did meanwhile.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import thinwire as tw


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", nargs="+", default=["tcp://127.0.0.1:5555"])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, help="where to keep this worker's state")
    parser.add_argument("--key", type=Path, help="this worker's NAME.key (thinwire keys new)")
    parser.add_argument("--certificate", type=Path, help="the servers' NAME.crt")
    options = parser.parse_args()

    torch.manual_seed(0)  # all workers begin with the same weights
    net = nn.Sequential(nn.Linear(20, 256), nn.Tanh(), nn.Linear(256, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    recipe = tw.doublesqueeze()

    keys = tw.WorkerKeys(options.key, server=options.certificate) if options.key else None
    with tw.Client(
        options.servers, recipe, rank=options.rank, workers=options.workers, keys=keys
    ) as client:
        load(options.checkpoint, net, optimizer, client)
        client.attach(net, optimizer)
        while client.version < options.steps:
            loss = loss_of(net, step=client.steps, rank=options.rank)
            loss.backward()  # type: ignore[no-untyped-call]
            client.step()
            optimizer.zero_grad()
            if client.version % 50 == 0:
                save(options.checkpoint, net, optimizer, client)
                print(f"version {client.version}: loss {loss.item():.3f}", flush=True)
        stats = client.stats()
        print(f"{stats.ratio:.0f} times fewer bytes", flush=True)


def loss_of(net: nn.Module, *, step: int, rank: int) -> Tensor:
    """Every worker has data of its own; here, whether the first number is above 0."""
    x = torch.randn(64, 20, generator=torch.Generator().manual_seed(1000 * step + rank))
    return nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long())


def save(
    path: Path | None, net: nn.Module, optimizer: torch.optim.Optimizer, client: tw.Client
) -> None:
    if path is not None:
        state = {
            "net": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "client": client.state_dict(),
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)


def load(
    path: Path | None, net: nn.Module, optimizer: torch.optim.Optimizer, client: tw.Client
) -> None:
    if path is not None and path.exists():
        state = torch.load(path, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        client.load_state_dict(state["client"])


if __name__ == "__main__":
    main()
