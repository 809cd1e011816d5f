"""Where the stable range of learning rates ends, with and without compression.

    python benchmarks/stability.py [--problems quadratic,text] [--json FILE]

A rate is stable if the mean loss of the last tenth of a run is below the loss at its start, and no
loss on the way was a thousand times that. The largest stable rate is searched by halving an
interval of rates that are factors of the square root of two apart; one edge is assumed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.recipe import Recipe
from thinwire_lab.data.text import draw, read_corpus
from thinwire_lab.models.language import GPTSettings, build_gpt, next_token_loss

WORKERS = 4
SLOW = (1.0, 1.0, 1.0, 0.1)
LOWEST, HIGHEST = -16, 8
"""Rates are 2 ** (j / 2), with j in this range."""


@dataclass(frozen=True)
class Problem:
    """``start`` makes a network and its loss, which draws noise or a batch from a generator."""

    name: str
    steps: int
    start: Callable[[], tuple[nn.Module, Callable[[torch.Generator], Tensor]]]


def quadratic() -> Problem:
    """Curvatures from 0.01 to 1, so that dense SGD bears rates below 2; a little noise."""
    numel, noise = 256, 0.02
    curvature = torch.logspace(-2, 0, numel)

    def start() -> tuple[nn.Module, Callable[[torch.Generator], Tensor]]:
        net = nn.Linear(numel, 1, bias=False)
        net.weight.data.fill_(1.0)

        def loss_of(generator: torch.Generator) -> Tensor:
            x = net.weight[0]
            # The noise has a gradient, but does not change the value of the loss.
            shaking = x * noise * torch.randn(numel, generator=generator)
            return (curvature * x.square() / 2 + shaking - shaking.detach()).sum()

        return net, loss_of

    return Problem("quadratic", 400, start)


def text() -> Problem:
    """Characters of Python's standard library, and a GPT with 7,472 weights."""
    settings = GPTSettings(context=16, layers=1, heads=2, width=16)
    corpus = read_corpus(max_nbytes=1 << 20).training

    def start() -> tuple[nn.Module, Callable[[torch.Generator], Tensor]]:
        net = build_gpt(settings, seed=0)
        return net, lambda generator: next_token_loss(net, draw(corpus, 8, 16, generator))

    return Problem("text", 200, start)


PROBLEMS = {"quadratic": quadratic, "text": text}


@dataclass(frozen=True)
class Variant:
    """``momentum`` is the optimizer's, after the server. A recipe may have one before its codec."""

    codec: str
    where: str
    recipe: Recipe
    momentum: float = 0.0
    asynchronous: bool = False


def variants() -> list[Variant]:
    chosen = [
        Variant("dense", "none", tw.dense()),
        Variant("dense", "after", tw.dense(), 0.9),
        Variant("dense, asynchronous", "none", tw.dense(), asynchronous=True),
    ]
    for name, codec in (("1 bit", tw.OneBit()), ("top-k 1 %", tw.TopK(0.01))):
        both = tw.doublesqueeze(codec)
        early = tw.Recipe(codec, tw.chain(tw.Momentum(0.9), tw.Residual()), codec, tw.Residual())
        chosen += [
            Variant(f"{name}, both ways", "none", both),
            Variant(f"{name}, both ways", "after", both, 0.9),
            Variant(f"{name}, both ways", "before", early, 0.9),
            Variant(f"{name}, both ways", "sent", tw.momentum_sgd(codec), 0.9),
            Variant(f"{name}, both ways, asynchronous", "none", both, asynchronous=True),
        ]
    chosen += [
        Variant("chosen: top-k 5 %, both ways", "none", tw.doublesqueeze()),
        Variant("chosen: 1 bit, stretched, both ways", "sent", tw.momentum_sgd(), 0.9),
    ]
    pushed = tw.TopK(0.01)
    dgc, masked = (
        tw.dgc(0.01, warmup_steps=0, vectors=pushed, mask=mask) for mask in (False, True)
    )
    one_way = tw.Recipe(pushed, tw.Residual(), tw.Nonzero(), tw.NoFeedback())
    return [
        *chosen,
        Variant("top-k 1 %, one way", "none", one_way),
        Variant("top-k 1 %, one way", "after", one_way, 0.9),
        Variant("top-k 1 %, one way (DGC)", "before", dgc, 0.9),
        Variant("top-k 1 %, one way (DGC, masked)", "before", masked, 0.9),
    ]


class Diverged(Exception):
    pass


def last_loss(problem: Problem, variant: Variant, rate: float) -> tuple[float, float]:
    """The loss at the start, and the mean of the last tenth of a run; inf if it blew up.

    An asynchronous run has as many gradients: a version for each of them.
    """
    net, loss_of = problem.start()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=variant.momentum)
    cluster = tw.VirtualCluster(
        net,
        optimizer,
        variant.recipe,
        workers=WORKERS,
        force=True,
        quorum=1 if variant.asynchronous else None,
        speeds=SLOW if variant.asynchronous else None,
    )
    generator = torch.Generator().manual_seed(0)
    losses: list[float] = []

    def watched(worker: int) -> Tensor:
        loss = loss_of(generator)
        losses.append(loss.item())
        if not losses[-1] < 1000 * losses[0]:
            raise Diverged
        return loss

    try:
        while cluster.evaluations < WORKERS * problem.steps:
            cluster.step(watched)
    except Diverged:
        return losses[0], math.inf
    return losses[0], statistics.fmean(losses[-len(losses) // 10 :])


@dataclass(frozen=True)
class Edge:
    """The largest stable rate (0: none was), and the last losses with it and with half of it."""

    problem: str
    codec: str
    momentum: str
    rate: float
    loss: float
    loss_at_half: float


def find_edge(problem: Problem, variant: Variant) -> Edge:
    @cache
    def run(j: int) -> tuple[float, float]:
        return last_loss(problem, variant, 2.0 ** (j / 2))

    def is_stable(j: int) -> bool:
        first, last = run(j)
        return last < first

    low, high = LOWEST, HIGHEST + 1
    if not is_stable(low):
        return Edge(problem.name, variant.codec, variant.where, 0.0, math.inf, math.inf)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_stable(middle) else (low, middle)
    rate = 2.0 ** (low / 2)
    return Edge(problem.name, variant.codec, variant.where, rate, run(low)[1], run(low - 2)[1])


def show_head() -> None:
    print("| problem | exchange | momentum 0.9 | largest stable rate | loss | loss at half of it |")
    print("|---|---|---|---:|---:|---:|", flush=True)


def show(edge: Edge) -> None:
    numbers = f"{edge.rate:.3g} | {edge.loss:.3g} | {edge.loss_at_half:.3g}"
    print(f"| {edge.problem} | {edge.codec} | {edge.momentum} | {numbers} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", default="quadratic,text")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    problems = [PROBLEMS[name]() for name in options.problems.split(",")]
    edges = []
    show_head()
    for problem in problems:
        for variant in variants():
            edges.append(find_edge(problem, variant))
            show(edges[-1])
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(edge) for edge in edges], indent=1))


if __name__ == "__main__":
    main()
