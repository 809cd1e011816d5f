"""``LSTM``: the usual language model for Penn Treebank, two layers (Zaremba et al. 2014)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from thinwire.checks import check_whole
from thinwire.errors import ConfigError

State = tuple[Tensor, Tensor]
"""Hidden and cell state, each (layers, rows, width)."""


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
