"""``GPT``: a small one in plain PyTorch, which a laptop can train."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.checks import check_whole
from thinwire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GPTSettings:
    """``context`` is how many tokens the network sees; ``width`` is the size of embeddings."""

    vocabulary: int = 128
    context: int = 64
    layers: int = 3
    heads: int = 4
    width: int = 128

    def __post_init__(self) -> None:
        for field in ("vocabulary", "context", "layers", "heads", "width"):
            check_whole(getattr(self, field), least=1, owner="GPTSettings", field=field)
        if self.width % self.heads:
            raise ConfigError(
                f"GPTSettings: width must be a multiple of heads, got {self.width} and {self.heads}"
            )

    def make(self) -> nn.Module:
        return GPT(self)


class GPT(nn.Module):
    """Logits of the next token at every position."""

    def __init__(self, settings: GPTSettings) -> None:
        super().__init__()
        width = settings.width
        self.tokens = nn.Embedding(settings.vocabulary, width)
        self.positions = nn.Embedding(settings.context, width)
        self.blocks = nn.Sequential(*(Block(settings) for _ in range(settings.layers)))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, settings.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[-1])
        x = self.tokens(tokens) + self.positions(positions)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class Block(nn.Module):
    """Attention, then two linear layers, each with a residual connection."""

    def __init__(self, settings: GPTSettings) -> None:
        super().__init__()
        width = settings.width
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(settings)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Attention(nn.Module):
    """Every position attends to those before it."""

    def __init__(self, settings: GPTSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.inputs = nn.Linear(settings.width, 3 * settings.width, bias=False)
        self.output = nn.Linear(settings.width, settings.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = self.inputs(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.output(mixed.transpose(1, 2).reshape(rows, length, width))
        return out


def build(settings: GPTSettings, *, seed: int) -> GPT:
    """Make a network; the same seed gives the same weights. Global generators are unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return GPT(settings)


def next_token_loss(net: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross-entropy, in nats, of each token after those before it in its row."""
    logits = net(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
