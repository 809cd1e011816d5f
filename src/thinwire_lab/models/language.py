"""``GPT``, ``BERT`` and ``LSTM``: language models in plain PyTorch, which a laptop can train.

``GPT`` predicts the next token. ``BERT`` is a masked language model, in which every word attends to
all others of its row. ``LSTM`` is the usual model for Penn Treebank, two layers (Zaremba et al.
2014).
"""

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
        self.blocks = nn.Sequential(*(GPTBlock(settings) for _ in range(settings.layers)))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, settings.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[-1])
        x = self.tokens(tokens) + self.positions(positions)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class GPTBlock(nn.Module):
    """Attention, then two linear layers, each with a residual connection."""

    def __init__(self, settings: GPTSettings) -> None:
        super().__init__()
        width = settings.width
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = GPTAttention(settings)
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


class GPTAttention(nn.Module):
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


def build_gpt(settings: GPTSettings, *, seed: int) -> GPT:
    """Make a network; the same seed gives the same weights. Global generators are unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return GPT(settings)


def next_token_loss(net: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross-entropy, in nats, of each token after those before it in its row."""
    logits = net(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


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
        self.blocks = nn.ModuleList(BERTBlock(settings) for _ in range(settings.layers))
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


class BERTBlock(nn.Module):
    """Attention, then two linear layers, each with a residual connection and then normalised."""

    def __init__(self, settings: BERTSettings) -> None:
        super().__init__()
        width = settings.width
        self.attention = BERTAttention(settings)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.mlp_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        out: Tensor = self.mlp_norm(x + self.mlp(x))
        return out


class BERTAttention(nn.Module):
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


State = tuple[Tensor, Tensor]
"""Hidden and cell state of an LSTM, each (layers, rows, width)."""


@dataclass(frozen=True, slots=True)
class LSTMSettings:
    """``tied``: input and output embeddings are the same. Initial weights are uniform in
    ± ``spread``."""

    words: int = 10_000
    width: int = 200
    layers: int = 2
    dropout: float = 0.0
    tied: bool = False
    spread: float = 0.1

    def __post_init__(self) -> None:
        for field in ("words", "width", "layers"):
            check_whole(getattr(self, field), least=1, owner="LSTMSettings", field=field)
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"LSTMSettings: dropout must be in [0, 1), got {self.dropout}")

    def make(self) -> nn.Module:
        return LSTM(self)


class LSTM(nn.Module):
    """Logits of the next word at every position, and the state after the last."""

    def __init__(self, settings: LSTMSettings) -> None:
        super().__init__()
        words, width, dropout = settings.words, settings.width, settings.dropout
        self.inputs = nn.Embedding(words, width)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.LSTM(width, width, settings.layers, dropout=dropout, batch_first=True)
        self.head = nn.Linear(width, words)
        if settings.tied:
            self.head.weight = self.inputs.weight
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -settings.spread, settings.spread)
        nn.init.zeros_(self.head.bias)

    def forward(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        y, state = self.layers(self.drop(self.inputs(words)), state)
        return self.head(self.drop(y)), state
