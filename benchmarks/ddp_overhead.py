"""One training step under plain DDP and under each recipe, in turns in one run of two ranks.

    python benchmarks/ddp_overhead.py [--layers 24] [--width 1024] [--batch 64] [--rounds 15]

Ratios mean something, absolute times do not: two ranks share this machine. The link is loopback, so
this shows what Thinwire itself costs; what it saves on a real link is another benchmark.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw

RECIPES: dict[str, Callable[[], tw.Recipe] | None] = {
    "plain DDP": None,
    "dense": tw.dense,
    "1 bit": lambda: tw.doublesqueeze(tw.OneBit()),
    "dgc 0.1 %": lambda: tw.dgc(0.001, warmup_steps=0),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    return parser.parse_args()


def make_step(name: str, options: argparse.Namespace) -> Callable[[], tuple[float, float]]:
    torch.manual_seed(1)
    layers = [nn.Linear(options.width, options.width) for _ in range(options.layers)]
    model = DistributedDataParallel(
        nn.Sequential(*layers), bucket_cap_mb=options.bucket_mb, gradient_as_bucket_view=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    make_recipe = RECIPES[name]
    if make_recipe is not None:
        tw.compress_ddp(model, make_recipe(), optimizer=optimizer)
    x = torch.randn(options.batch, options.width)

    def step() -> tuple[float, float]:
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start, time.process_time() - used

    return step


def measure(rank: int, options: argparse.Namespace, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    steps = {name: make_step(name, options) for name in RECIPES}
    for step in steps.values():
        for _ in range(3):
            step()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            seconds[name].append(step())
    if rank == 0:
        report(seconds)


def report(seconds: dict[str, list[tuple[float, float]]]) -> None:
    """Best and median; and the processor time of rank 0, which other programs disturb less."""
    print(f"{'':12}{'ms: best':>10}{'median':>8}{'cpu':>8}   of plain DDP: best, median, cpu")
    base: list[float] = []
    for name, samples in seconds.items():
        wall, used = zip(*samples, strict=True)
        row = [1e3 * x for x in (min(wall), statistics.median(wall), statistics.median(used))]
        base = base or row
        ratios = "".join(f"{a / b:8.2f}" for a, b in zip(row, base, strict=True))
        print(f"{name:12}{row[0]:10.1f}{row[1]:8.1f}{row[2]:8.1f}{'':10}{ratios}")


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=measure, args=(r, parse(), 29631)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
