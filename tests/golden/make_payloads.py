"""Writes the golden payloads that are not there yet: ``python -m tests.golden.make_payloads``.

Golden bytes are read for ever, so an existing file is never written again. ``NAME.bin`` is the
payload; ``NAME.npz`` holds the tensor it was encoded from and the one that it decodes to.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import thinwire as tw
from thinwire.codec.base import Codec
from thinwire.testing.tensors import make

FOLDER = Path(__file__).parent / "payloads"
SEED = 0x0123456789ABCDEF


def _special(numel: int) -> Tensor:
    """Normal numbers, and those that rounding treats differently."""
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1e-45,
        -1e-40,
        6e-8,
        65504.0,
        65519.0,
        1e6,
        -3e38,
        1.0009765625,
    ]
    return torch.cat([make("normal", numel - len(special), seed=1), torch.tensor(special)])


def _scattered(gaps: list[int]) -> Tensor:
    """Numbers that far apart, and zeros between and after them."""
    indices = torch.tensor(gaps).cumsum(0) + torch.arange(len(gaps))
    x = torch.zeros(int(indices[-1]) + 9)
    x[indices] = make("normal", len(gaps), seed=len(gaps))
    return x


def _with_fillers() -> Tensor:
    """Gaps for which 16 bits are fewer than a Rice code takes, and some that need fillers."""
    return _scattered([0, 65535, 65536, 131072, *[33_000] * 200])


CASES: dict[str, tuple[Codec, Tensor]] = {
    "float32": (tw.Float32(), torch.tensor([1.0, -0.0, float("inf"), float("nan"), 1e-45])),
    "float32-empty": (tw.Float32(), torch.zeros(0)),
    "float16": (tw.Float16(), _special(50)),
    "bfloat16": (tw.BFloat16(), _special(50)),
    "onebit": (tw.OneBit(), make("normal", 131, seed=1)),
    "onebit-empty": (tw.OneBit(), torch.zeros(0)),
    "onebit-zeros": (tw.OneBit(), torch.zeros(70)),
    "onebit-zero-map": (tw.OneBit(), make("row-sparse", 1000, seed=1)),
    "onebit-block": (tw.OneBit(block=64), make("heavy-tailed", 200, seed=1)),
    "onebit-block-zero-map": (tw.OneBit(block=128), make("row-sparse", 1000, seed=2)),
    "onebit-l2": (tw.OneBit("l2"), make("heavy-tailed", 131, seed=2)),
    "onebit-l2-block": (tw.OneBit("l2", 64), make("heavy-tailed", 131, seed=3)),
    "onebit-huge": (tw.OneBit(), make("huge", 131, seed=1)),
    "topk-float32": (tw.TopK(0.05), make("normal", 1000, seed=1)),
    "topk-float32-gap16": (tw.TopK(0.001), _with_fillers()),
    "topk-float16": (tw.TopK(0.05, "float16"), make("heavy-tailed", 1000, seed=1)),
    "topk-float16-gap16": (tw.TopK(0.001, "float16"), _with_fillers()),
    "topk-float16-zeros": (tw.TopK(0.05, "float16"), torch.zeros(100)),
    "topk-int8": (tw.TopK(0.3, "int8"), make("normal", 1000, seed=2)),
    "topk-ties": (tw.TopK(0.5, select="exact"), make("constant", 33, seed=1)),
    "topk-all": (tw.TopK(1.0), make("normal", 9, seed=1)),
    "chunktopk-2": (tw.ChunkTopK(), make("normal", 9000, seed=1)),
    "chunktopk-4": (tw.ChunkTopK(1 / 16, "4bit"), make("heavy-tailed", 5000, seed=1)),
    "chunktopk-huge": (tw.ChunkTopK(0.5), make("huge", 131, seed=1)),
    "chunktopk-subnormal": (tw.ChunkTopK(0.5, "4bit"), make("subnormal", 300, seed=1)),
    "chunktopk-ties": (tw.ChunkTopK(0.5), make("constant", 33, seed=1)),
    "chunktopk-one-chunk": (tw.ChunkTopK(1 / 256), _scattered([4100, *[0] * 9, 5000])),
    "chunktopk-empty": (tw.ChunkTopK(), torch.zeros(0)),
    "nonzero": (tw.Nonzero(), make("half minus zero", 300, seed=1)),
    "nonzero-gap16": (tw.Nonzero(), _with_fillers()),
    "nonzero-empty": (tw.Nonzero(), torch.zeros(0)),
    "randomk": (tw.RandomK(0.05), make("normal", 1000, seed=3)),
    "randomk-tiny": (tw.RandomK(0.5), make("normal", 3, seed=3)),
    **{f"dither-linear-{b}": (tw.Dither(b), make("normal", 150, seed=b)) for b in range(1, 9)},
    **{
        f"dither-natural-{b}": (tw.Dither(b, "natural"), make("normal", 150, seed=b))
        for b in range(1, 9)
    },
    **{
        f"dither-l2-{levels}-{b}": (tw.Dither(b, levels, "l2"), make("normal", 300, seed=b))
        for b in (2, 4, 8)
        for levels in ("linear", "natural")
    },
    "dither-zeros": (tw.Dither(4), torch.zeros(70)),
    "dither-l2-zeros": (tw.Dither(4, norm="l2"), torch.zeros(70)),
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, (codec, x) in CASES.items():
        payload_file, tensors_file = FOLDER / f"{name}.bin", FOLDER / f"{name}.npz"
        if payload_file.exists() or tensors_file.exists():
            continue
        payload, decoded = codec.encode(x, seed=SEED), torch.empty_like(x)
        codec.decode(payload, decoded)
        np.savez_compressed(tensors_file, input=x.numpy(), decoded=decoded.numpy())
        payload_file.write_bytes(payload)


if __name__ == "__main__":
    main()
