"""``measure``: the ratio of one push of a paper's own network, encoded and framed, not trained.

In the small networks that are trained here, biases and frames weigh more. A ratio that a paper
prints can only be compared on the paper's network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from thinwire.gradient.pieces import Key
from thinwire.recipe_text import read_recipe
from thinwire.virtual.exchange import VirtualExchange
from thinwire_lab.bench.links.models import BERT, RESNET50, shapes_of
from thinwire_lab.bench.synthetic import like_gradient
from thinwire_lab.report.page import Block, Heading, Paragraph, Table
from thinwire_lab.reproduce.plan import Size
from thinwire_lab.tasks.registry import find_task

_GROUP_NUMEL = 1 << 24


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes of a gradient; ``dense`` is in 16 bits where the paper's is."""

    size: Size
    dense: int
    pushed: float

    @property
    def ratio(self) -> float:
        return self.dense / self.pushed


_STEADY = 1 << 30
"""A step after every warm-up."""


def measure(size: Size) -> Measured:
    """A few tensors at a time, so that a large network needs little memory."""
    recipe, generator = read_recipe(size.recipe), torch.Generator().manual_seed(0)
    keys = [Key(str(n), shape) for n, shape in enumerate(_shapes(size.network))]
    pushed = 0.0
    for group in _groups(keys):
        gradients = {key.name: like_gradient(torch.empty(key.shape), generator) for key in group}
        exchange = VirtualExchange(recipe, group, workers=1)
        pushed += exchange.average([gradients], step=_STEADY).pushed_nbytes
    numel = sum(key.numel for key in keys)
    return Measured(size, numel * (2 if size.half else 4), pushed)


def _groups(keys: Sequence[Key]) -> Iterator[list[Key]]:
    group: list[Key] = []
    for key in keys:
        if group and sum(member.numel for member in (*group, key)) > _GROUP_NUMEL:
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


def size_blocks(measurements: tuple[Measured, ...]) -> tuple[Block, ...]:
    rows = tuple(
        (
            measured.size.label,
            f"{measured.dense / 1e6:,.2f} MB",
            f"{measured.pushed / 1e6:,.3f} MB",
            f"{measured.ratio:.0f}x",
            f"{measured.size.paper:.0f}x",
        )
        for measured in measurements
    )
    return (
        Heading("Ratios on the papers' own networks"),
        Paragraph("One push of the whole network, encoded and framed; nothing is trained."),
        Table(("", "dense", "push", "here", "paper"), rows),
    )
