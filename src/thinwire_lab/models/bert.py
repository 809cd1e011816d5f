"""``BERT``: a masked language model, in which every word attends to all others of its row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.checks import check_whole
from thinwire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BERTSettings:
    """``words`` does not count the mask, whose number is the one after the last word."""

    words: int = 10_000
    context: int = 64
    layers: int = 2
    heads: int = 4
    width: int = 128

    def __post_init__(self) -> None:
        for field in ("words", "context", "layers", "heads", "width"):
            check_whole(getattr(self, field), least=1, owner="BERTSettings", field=field)
        if self.width % self.heads:
            raise ConfigError(
                f"BERTSettings: width must be a multiple of heads, got {self.width} and "
                f"{self.heads}"
            )

    @property
    def mask(self) -> int:
        return self.words

    def make(self) -> nn.Module:
        return BERT(self)


class BERT(nn.Module):
    """Logits of the word at every position, or only where it is ``asked`` for, which saves most
    of the work. Input and output embeddings are tied."""

    def __init__(self, settings: BERTSettings) -> None:
        super().__init__()
        width, self._words = settings.width, settings.words
        self.words = nn.Embedding(settings.words + 1, width)
        self.positions = nn.Embedding(settings.context, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(settings.words))
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, words: Tensor, asked: Tensor | None = None) -> Tensor:
        x = self.norm(self.words(words) + self.positions(torch.arange(words.shape[-1])))
        for block in self.blocks:
            x = block(x)
        x = x if asked is None else x[asked]
        x = self.transform_norm(functional.gelu(self.transform(x)))
        return functional.linear(x, self.words.weight[: self._words], self.bias)


class Block(nn.Module):
    """Attention, then two linear layers, each with a residual connection and then normalised."""

    def __init__(self, settings: BERTSettings) -> None:
        super().__init__()
        width = settings.width
        self.attention = Attention(settings)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.mlp_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        out: Tensor = self.mlp_norm(x + self.mlp(x))
        return out


class Attention(nn.Module):
    """Every position attends to all positions."""

    def __init__(self, settings: BERTSettings) -> None:
        super().__init__()
        self._heads = settings.heads
        self.inputs = nn.Linear(settings.width, 3 * settings.width)
        self.output = nn.Linear(settings.width, settings.width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = self.inputs(x).view(rows, length, 3, self._heads, width // self._heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.output(mixed.transpose(1, 2).reshape(rows, length, width))
        return out
