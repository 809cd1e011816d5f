"""In the steady state a step allocates nothing of the size of a gradient, nor of its payloads.

Counted where all allocations end, in malloc: those of torch, of Python and of C++. The network's
gradients are there before, so that backward itself needs no memory.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

import thinwire as tw
from tests.distributed import launch
from tests.distributed.training import Trainer, backward
from thinwire.gradient.pieces import cut, piece_numel_for
from thinwire.recipe import Recipe
from thinwire.testing.tensors import make

SIDE = 1024
RANKS = 2
STEPS = 5
MOST_ROUNDS = 8

SMALLEST_PAYLOAD = 32
"""How many times smaller than a gradient a payload is that counts as large: one bit of 32."""

OPTIONS: dict[str, dict[str, Any]] = {
    "sharded": {"exchange": "sharded"},
    "allgather": {"exchange": "allgather"},
    "one host": {"hierarchy": "host"},
    "without DDP": {"exchange": "allgather", "module": True},
}
RECIPES = {
    "dense": tw.dense(),
    "1 bit": tw.doublesqueeze(tw.OneBit()),
    "1 bit in blocks": tw.doublesqueeze(tw.OneBit(block=64)),
    "top-k": tw.doublesqueeze(tw.TopK(0.25)),
    "dgc": tw.dgc(0.001),
    "dgc, much": tw.dgc(0.25),
    "dither": tw.clan(tw.Dither(8)),
    "dither l2": tw.clan(tw.Dither(4, norm="l2")),
}


@pytest.fixture(scope="module")
def watched() -> Iterator[None]:
    """New processes, with the watcher loaded before all else."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the watcher of malloc needs a C compiler and glibc")
    launch.end()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        library = str(Path(folder) / "malloc_watch.so")
        source = str(Path(__file__).with_name("malloc_watch.c"))
        command = [compiler, "-std=c11", "-O1", "-shared", "-fPIC", source, "-o", library]
        subprocess.run(command, check=True, timeout=60)
        patch.setenv("LD_PRELOAD", library)
        yield
        launch.end()


def allocations(least_nbytes: int, work: Callable[[], object]) -> tuple[int, str]:
    """How many allocations of at least this size happen during ``work``, and the first stacks."""
    watch = ctypes.CDLL(None)
    watch.malloc_watch_end.restype = ctypes.c_size_t
    watch.malloc_watch_begin(ctypes.c_size_t(least_nbytes))
    work()
    count = int(watch.malloc_watch_end())
    with tempfile.TemporaryFile() as file:
        for number in range(min(count, 3)):
            file.write(b"\n")
            file.flush()
            watch.malloc_watch_show(ctypes.c_size_t(number), file.fileno())
        file.seek(0)
        return count, file.read().decode()


class Given(torch.autograd.Function):
    """Backward gives the parameter a gradient that is there already."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return torch.zeros(())

    @staticmethod
    def backward(ctx: FunctionCtx, *_: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None  # type: ignore[attr-defined]  # forward put it there


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shapes = ((SIDE, SIDE), (SIDE,), (SIDE, SIDE))
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, gradients: list[Tensor]) -> Tensor:
        losses = [
            Given.apply(weight, gradient)  # type: ignore[no-untyped-call]
            for weight, gradient in zip(self.weights, gradients, strict=True)
        ]
        return torch.stack(losses).sum()


def piece_nbytes() -> int:
    """Of the network's largest piece, as float32."""
    keys = [tw.Key(str(i), tuple(p.shape)) for i, p in enumerate(Network().weights)]
    most_numel = piece_numel_for(keys, owners=RANKS)
    return 4 * max(piece.numel for piece in cut(keys, most_numel=most_numel))


def steady(recipe: Recipe, options: dict[str, Any], least_nbytes: int) -> list[tuple[int, str]]:
    """The allocations of each round of ``STEPS`` steps, up to the first without any on any rank."""
    net = Network()
    given = [
        [make("normal", p.numel(), seed=i).view(p.shape) for p in net.parameters()]
        for i in range(2)
    ]
    ddp = {"bucket_cap_mb": 4, "gradient_as_bucket_view": True}
    trainer = Trainer(recipe, net=net, ddp=ddp, **options)

    def train() -> None:
        for step in range(STEPS):
            backward(trainer.model(given[step % 2]))
            trainer.optimizer.step()
            trainer.optimizer.zero_grad(set_to_none=False)

    rounds: list[tuple[int, str]] = []
    on_all_ranks = torch.ones(())
    while len(rounds) < MOST_ROUNDS and on_all_ranks > 0:
        rounds.append(allocations(least_nbytes, train))
        on_all_ranks.fill_(rounds[-1][0])
        dist.all_reduce(on_all_ranks)
    return rounds


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_steady_step_allocates_nothing_large(recipe: str, options: str) -> None:
    """How many units are on their way at once varies, and so does when the last buffer is made."""
    least = piece_nbytes() // SMALLEST_PAYLOAD
    found = launch.run(
        steady,
        RECIPES[recipe],
        OPTIONS[options],
        least,
        ranks=RANKS,
        env={"LOCAL_WORLD_SIZE": str(RANKS)},
    )
    for rank, rounds in enumerate(found):
        counts, stacks = [count for count, _ in rounds], rounds[-1][1]
        assert counts[0] > 0, f"rank {rank}: not even the first steps allocated"
        assert counts[-1] == 0, f"rank {rank}: allocations by round {counts}; {stacks}"


def deliberate(nbytes: int) -> dict[str, int]:
    """What is counted for one allocation of each kind, and for one that is too small."""
    x, payload = torch.zeros(nbytes // 4), tw.Float32().encode(torch.ones(nbytes // 4), seed=0)
    kinds: dict[str, Callable[[], object]] = {
        "torch": lambda: torch.empty(nbytes, dtype=torch.uint8),
        "a result of torch": lambda: x + x,
        "Python": lambda: bytearray(nbytes),
        "numpy": lambda: np.empty(nbytes, np.uint8),
        "a payload": lambda: tw.Float32().encode(x, seed=0),
        "too small": lambda: bytearray(nbytes // 2),
        "in place": lambda: tw.Float32.add(payload, x, weight=1.0),
    }
    counts = {kind: allocations(nbytes, work)[0] for kind, work in kinds.items()}
    # A new thread has no scratch memory yet: what C++ allocates there is seen, the first time.
    dense = tw.Nonzero().encode(torch.ones(nbytes), seed=0)
    out = torch.empty(nbytes)
    with ThreadPoolExecutor(1) as thread:
        for kind in ("C++", "C++ again"):
            counts[kind], _ = allocations(
                nbytes, lambda: thread.submit(tw.Nonzero.decode, dense, out).result()
            )
    return counts


@pytest.mark.usefixtures("watched")
def test_an_allocation_is_seen() -> None:
    (found,) = launch.run(deliberate, 1 << 20, ranks=1)
    assert {kind for kind, count in found.items() if count == 0} == {
        "too small",
        "in place",
        "C++ again",
    }
