"""What compression did so far, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from thinwire.compressor import Compressor
from thinwire.encoded import Encoded
from thinwire.gradient.pieces import Piece


@dataclass(frozen=True, slots=True)
class TensorStats:
    """One parameter's gradient, since the beginning. Bytes are payloads, without frames.

    ``residual_ratio`` is the norm of what this rank owes for it over the norm of its newest
    gradient: how many steps' worth of gradient wait. None where nothing is kept.
    """

    dense_nbytes: int
    pushed_nbytes: int
    pulled_nbytes: int
    residual_ratio: float | None

    @property
    def ratio(self) -> float:
        """How many times fewer bytes, both ways together. 1 if there were none."""
        return 2 * self.dense_nbytes / max(1, self.pushed_nbytes + self.pulled_nbytes)


@dataclass(frozen=True, slots=True)
class Stats:
    """One rank, since the beginning.

    ``dense_nbytes`` are this rank's gradients in float32, ``pushed_nbytes`` and ``pulled_nbytes``
    what became of them in each direction: payloads, also those that a rank sends itself because it
    is the owner. ``sent_nbytes`` and ``received_nbytes`` really left and reached this rank, frames
    and all, without what TCP adds.

    ``encode_seconds``, ``serve_seconds`` and ``decode_seconds`` are processor time.
    ``exchange_seconds`` passed while gradients were on their way, waits included; of these backward
    had to wait for ``exposed_seconds``, and the rest was hidden behind it.
    """

    steps: int
    overflowed_steps: int
    dense_nbytes: int
    pushed_nbytes: int
    pulled_nbytes: int
    sent_nbytes: int
    received_nbytes: int
    encode_seconds: float
    serve_seconds: float
    decode_seconds: float
    exchange_seconds: float
    exposed_seconds: float
    residual_ratio: float | None
    tensors: dict[str, TensorStats]

    @property
    def ratio(self) -> float:
        """How many times fewer bytes, both ways together."""
        return 2 * self.dense_nbytes / max(1, self.pushed_nbytes + self.pulled_nbytes)

    @property
    def hidden_seconds(self) -> float:
        return max(0.0, self.exchange_seconds - self.exposed_seconds)


@dataclass(frozen=True, slots=True)
class ClientStats:
    """One worker, since it was attached.

    ``dense_nbytes`` are its gradients in float32, ``pushed_nbytes`` and ``pulled_nbytes`` what
    became of them in each direction. ``sent_nbytes`` and ``received_nbytes`` are frames and all,
    also those that were sent again. ``refused_pieces`` came too late and are owed again.
    ``overflowed_pieces`` had an inf or a nan and were left out.
    """

    steps: int
    version: int
    dense_nbytes: int
    pushed_nbytes: int
    pulled_nbytes: int
    sent_nbytes: int
    received_nbytes: int
    refused_pieces: int
    overflowed_pieces: int
    rejoined: int
    encode_seconds: float
    residual_ratio: float | None
    tensors: dict[str, TensorStats]

    @property
    def ratio(self) -> float:
        """How many times fewer bytes, both ways together."""
        return 2 * self.dense_nbytes / max(1, self.pushed_nbytes + self.pulled_nbytes)


@dataclass(slots=True)
class Tally:
    """Payload bytes by parameter. Each field is written by one thread alone."""

    dense: dict[str, int] = field(default_factory=dict)
    pushed: dict[str, int] = field(default_factory=dict)
    pulled: dict[str, int] = field(default_factory=dict)

    def push(self, pieces: Sequence[Piece], encoded: Sequence[Encoded]) -> None:
        for piece, one in zip(pieces, encoded, strict=True):
            _add(self.dense, piece, 4 * piece.numel)
            _add(self.pushed, piece, one.nbytes)

    def pull(self, pieces: Sequence[Piece], encoded: Sequence[Encoded]) -> None:
        for piece, one in zip(pieces, encoded, strict=True):
            _add(self.pulled, piece, one.nbytes)

    def tensors(self, ratios: Mapping[str, float]) -> dict[str, TensorStats]:
        return {
            name: TensorStats(dense, self.pushed[name], self.pulled.get(name, 0), ratios.get(name))
            for name, dense in self.dense.items()
        }


def _add(counts: dict[str, int], piece: Piece, nbytes: int) -> None:
    counts[piece.key.name] = counts.get(piece.key.name, 0) + nbytes


def residual_ratios(
    compressor: Compressor, pieces: Sequence[Piece]
) -> tuple[dict[str, float], float | None]:
    """The norm of the residual over that of the newest gradient: by parameter, and of all."""
    owed = compressor.owed_squares()
    sums: dict[str, tuple[float, float]] = {}
    for piece in pieces:
        if piece.name in owed and compressor.squares.get(piece.name):
            a, b = sums.get(piece.key.name, (0.0, 0.0))
            sums[piece.key.name] = (a + owed[piece.name], b + compressor.squares[piece.name])
    ratios = {name: math.sqrt(a / b) for name, (a, b) in sums.items()}
    if not sums:
        return ratios, None
    return ratios, math.sqrt(
        math.fsum(a for a, _ in sums.values()) / math.fsum(b for _, b in sums.values())
    )
