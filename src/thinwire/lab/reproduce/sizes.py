"""Ratios on the papers' own networks: one push of each tensor, encoded and framed, nothing trained.

What is small here is small in its networks, too, where biases and frames weigh more. A ratio that a
paper prints can only be compared on the network that it is of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from thinwire.gradient.keys import Key
from thinwire.lab.bench.given_gradient import like_gradient
from thinwire.lab.bench.links_models import BERT, RESNET50, shapes_of
from thinwire.lab.report.page import Block, Heading, Paragraph, Table
from thinwire.lab.reproduce.plan import Size
from thinwire.lab.tasks.registry import find_task
from thinwire.spelling import read_recipe
from thinwire.worker.virtual import VirtualExchange

_GROUP_NUMEL = 1 << 24


@dataclass(frozen=True, slots=True)
class Measured:
    """``dense`` and ``pushed`` are bytes of a gradient; dense ones of 16 bits where the paper's
    are."""

    size: Size
    dense: int
    pushed: float

    @property
    def ratio(self) -> float:
        return self.dense / self.pushed


def measure(size: Size) -> Measured:
    """A few tensors at a time, so that a large network needs little memory."""
    recipe, generator = read_recipe(size.recipe), torch.Generator().manual_seed(0)
    keys = [Key(str(n), shape) for n, shape in enumerate(_shapes(size.network))]
    pushed = 0.0
    for some in _groups(keys):
        own = {key.name: like_gradient(torch.empty(key.shape), generator) for key in some}
        pushed += VirtualExchange(recipe, some, workers=1).average([own], step=0).pushed_nbytes
    numel = sum(key.numel for key in keys)
    return Measured(size, numel * (2 if size.half else 4), pushed)


def _groups(keys: Sequence[Key]) -> Iterator[list[Key]]:
    group: list[Key] = []
    for key in keys:
        if group and sum(one.numel for one in (*group, key)) > _GROUP_NUMEL:
            yield group
            group = []
        group.append(key)
    yield group


def _shapes(network: str) -> Iterator[tuple[int, ...]]:
    if network in (RESNET50, BERT):
        yield from (shape.dims for shape in shapes_of(network, 1))
        return
    with torch.device("meta"):
        net = find_task(network, "paper").model.make()
    yield from (tuple(x.shape) for x in net.parameters())


def size_blocks(found: tuple[Measured, ...]) -> tuple[Block, ...]:
    rows = tuple(
        (
            one.size.label,
            f"{one.dense / 1e6:,.2f} MB",
            f"{one.pushed / 1e6:,.3f} MB",
            f"{one.ratio:.0f}x",
            f"{one.size.paper:.0f}x",
        )
        for one in found
    )
    return (
        Heading("Ratios on the papers' own networks"),
        Paragraph("One push of the whole network, encoded and framed; nothing is trained."),
        Table(("", "dense", "push", "here", "paper"), rows),
    )
