"""S7: the paper's compression ratios, and what our own frames reach on the same networks."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import thinwire as tw
from tests.reference import shapes as nets
from thinwire.testing.tensors import make
from thinwire.wire.body import Entry
from thinwire.wire.frame import pack
from thinwire.wire.messages import Push, encode

Network = Callable[[], nets.Shapes]
PAPER_RATIOS = [(nets.alexnet, 597.7), (nets.resnet50, 276.7), (nets.ptb_lstm, 461.8)]


@pytest.mark.parametrize(
    ("network", "parameters"),
    [(nets.alexnet, 60_965_224), (nets.resnet50, 25_557_032), (nets.ptb_lstm, 51_034_000)],
)
def test_S7_networks_have_the_published_number_of_parameters(
    network: Network, parameters: int
) -> None:
    assert nets.count(network()) == parameters


@pytest.mark.parametrize(("network", "ratio"), PAPER_RATIOS)
def test_S7_paper_format_gives_the_paper_ratios(network: Network, ratio: float) -> None:
    """A 32-bit value and a 16-bit gap for 0.1 % of the weights, not rounded; 1-D tensors dense."""
    nbytes = 0.0
    for shape in network().values():
        numel = math.prod(shape)
        nbytes += 4 * numel if len(shape) == 1 else 6 * 0.001 * numel
    assert 4 * nets.count(network()) / nbytes == pytest.approx(ratio, abs=0.05)


@pytest.mark.parametrize(("network", "ratio"), PAPER_RATIOS)
def test_S7_our_frames_do_better(network: Network, ratio: float) -> None:
    """Header, checksum, table of tensors and all: one real push of the whole network."""
    ours = {values: _frame_ratio(network(), values) for values in ("float32", "float16", "int8")}
    print(f"{network.__name__}: paper {ratio}x, ours {ours}")
    assert ours["float32"] > ratio
    assert ours["int8"] > ours["float16"] > ours["float32"]


def _frame_ratio(shapes: nets.Shapes, values: str) -> float:
    compressor = tw.Compressor(tw.TopK(0.001, values=values), tw.NoFeedback())
    generator = torch.Generator().manual_seed(0)
    entries = []
    for piece, (name, shape) in enumerate(shapes.items()):
        gradient = torch.randn(shape, generator=generator)
        sent = compressor.compress(name, gradient, step=0)
        entries.append(Entry(piece, sent))
    header, body = pack(encode(Push(0, 0.0, tuple(entries)), run=1, epoch=1, worker=0, step=0))
    return 4 * nets.count(shapes) / (len(header) + len(body))


@pytest.mark.parametrize("kind", ["normal", "heavy-tailed"])
@pytest.mark.parametrize(("values", "most_bits"), [("2bit", 9.8), ("4bit", 11.8)])
def test_S7_a_kept_element_of_a_chunk_takes_few_bits(
    kind: str, values: str, most_bits: float
) -> None:
    """Header, levels, places and all, at 1/64: the places of 64 in 4,096 are 7.4 bits each."""
    codec = tw.ChunkTopK(values=values)
    x = make(kind, 1 << 20, seed=1)
    assert 8 * len(codec.encode(x, seed=0)) / codec.kept(x.numel()) <= most_bits
