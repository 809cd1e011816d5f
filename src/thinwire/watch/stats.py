"""Stats, ClientStats and ServerStats: what compression did so far, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from thinwire.compressor.compressor import Compressor
from thinwire.gradient.pieces import Piece
from thinwire.watch.stats_text import byte_text, residual_text, sent_text, table, time_text
from thinwire.wire.body import EncodedBytes


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
    had to wait for ``exposed_seconds``, and the rest was hidden behind it. With local steps,
    ``rounds`` are exchanges and ``dense_nbytes`` what all steps would have sent.

    ``forgotten_ratio`` is for residuals that decay: the norm of what they forgot in a step over
    that of a gradient, as root mean squares over all steps. None where nothing is forgotten.

    ``print`` shows a short table.
    """

    recipe: str
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
    rounds: int | None = None
    forgotten_ratio: float | None = None

    @property
    def ratio(self) -> float:
        """How many times fewer bytes, both ways together."""
        return 2 * self.dense_nbytes / max(1, self.pushed_nbytes + self.pulled_nbytes)

    @property
    def hidden_seconds(self) -> float:
        return max(0.0, self.exchange_seconds - self.exposed_seconds)

    def __str__(self) -> str:
        overflowed = self.overflowed_steps
        skipped = f", {overflowed} of them skipped for an inf or nan" if overflowed else ""
        times = (self.encode_seconds, self.serve_seconds, self.decode_seconds)
        encode, serve, decode = map(time_text, times)
        return table(
            [
                ("recipe", self.recipe),
                ("steps", f"{self.steps:,}{skipped}{_rounds_text(self)}"),
                ("dense", f"{byte_text(self.dense_nbytes)} each way"),
                ("pushed", sent_text(self.pushed_nbytes, self.dense_nbytes)),
                ("pulled", sent_text(self.pulled_nbytes, self.dense_nbytes)),
                ("network", _network_text(self)),
                ("work", f"encode {encode}, serve {serve}, decode {decode}"),
                ("exchange", self._exchange_text()),
                ("residual", residual_text(self.residual_ratio, self.forgotten_ratio)),
            ],
            self.tensors,
        )

    def _exchange_text(self) -> str:
        text = time_text(self.exchange_seconds)
        if not self.exchange_seconds:
            return text
        percent = 100 * self.hidden_seconds / self.exchange_seconds
        behind = "backward" if self.rounds is None else "training"
        return f"{text}, {percent:.0f} % of it hidden behind {behind}"


@dataclass(frozen=True, slots=True)
class ClientStats:
    """One worker, since it was attached.

    ``dense_nbytes`` are its gradients in float32, ``pushed_nbytes`` and ``pulled_nbytes`` what
    became of them in each direction. ``sent_nbytes`` and ``received_nbytes`` are frames and all,
    also those that were sent again. ``refused_pieces`` came too late and are owed again.
    ``overflowed_pieces`` had an inf or a nan and were left out. ``dense_pulled_nbytes`` are the
    updates in float32: with asynchronous servers there are more of them than of its gradients.
    With local steps, ``rounds`` are exchanges, and both are what all steps would have sent;
    ``round_steps`` is how many steps the round under way has.
    ``forgotten_ratio`` is that of ``Stats``.

    ``print`` shows a short table.
    """

    recipe: str
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
    dense_pulled_nbytes: int
    rounds: int | None = None
    round_steps: int | None = None
    forgotten_ratio: float | None = None

    @property
    def ratio(self) -> float:
        """How many times fewer bytes, both ways together."""
        dense = self.dense_nbytes + self.dense_pulled_nbytes
        return dense / max(1, self.pushed_nbytes + self.pulled_nbytes)

    def __str__(self) -> str:
        gradients, updates = map(byte_text, (self.dense_nbytes, self.dense_pulled_nbytes))
        refused, overflowed = self.refused_pieces, self.overflowed_pieces
        return table(
            [
                ("recipe", self.recipe),
                ("steps", f"{self.steps:,}{_rounds_text(self)}, at version {self.version:,}"),
                ("dense", f"{gradients} of gradients, {updates} of updates"),
                ("pushed", sent_text(self.pushed_nbytes, self.dense_nbytes)),
                ("pulled", sent_text(self.pulled_nbytes, self.dense_pulled_nbytes)),
                ("network", f"{_network_text(self)}; reconnected {self.rejoined} times"),
                ("work", f"encode {time_text(self.encode_seconds)}"),
                ("residual", residual_text(self.residual_ratio, self.forgotten_ratio)),
                (
                    "left out",
                    f"{refused} pieces refused as too old, {overflowed} with an inf or nan",
                ),
            ],
            self.tensors,
        )


@dataclass(frozen=True, slots=True)
class ServerStats:
    """One parameter server, since this start. A restart begins again at 0, but for ``version``.

    ``version`` is the newest one that all its pieces have reached; ``done`` when all workers are
    done or lost. ``connected`` and ``lost`` are ranks. Pieces of pushes were ``accepted_pieces``,
    ``stale_pieces`` (refused as too old) or ``repeated_pieces`` (counted before).
    ``overflowed_pieces`` are versions of pieces that were not finite and were thrown away.
    ``refused_sessions`` may not join or broke the protocol. ``received_nbytes`` and ``sent_nbytes``
    are frames and all.

    ``print`` shows a short table.
    """

    version: int
    done: bool
    connected: tuple[int, ...]
    lost: tuple[int, ...]
    accepted_pieces: int
    stale_pieces: int
    repeated_pieces: int
    overflowed_pieces: int
    refused_sessions: int
    received_nbytes: int
    sent_nbytes: int

    def __str__(self) -> str:
        connected, lost = (", ".join(map(str, ranks)) for ranks in (self.connected, self.lost))
        state = ", all workers are done or lost" if self.done else ""
        return table(
            [
                ("version", f"{self.version:,}{state}"),
                ("workers", f"connected: {connected or 'none'}; lost: {lost or 'none'}"),
                ("pieces", f"{self.accepted_pieces:,} accepted, {self.repeated_pieces:,} repeated"),
                ("network", f"{_network_text(self)}; {self.refused_sessions} sessions refused"),
                (
                    "left out",
                    f"{self.stale_pieces} pieces refused as too old, {self.overflowed_pieces} "
                    "with an inf or nan",
                ),
            ],
            {},
        )


def _network_text(stats: Stats | ClientStats | ServerStats) -> str:
    sent, received = map(byte_text, (stats.sent_nbytes, stats.received_nbytes))
    return f"{sent} sent, {received} received, with frames"


def _rounds_text(stats: Stats | ClientStats) -> str:
    return "" if stats.rounds is None else f", {stats.rounds:,} exchanges"


@dataclass(slots=True)
class Tally:
    """Payload bytes by parameter. Each field is written by one thread alone."""

    dense: dict[str, int] = field(default_factory=dict)
    pushed: dict[str, int] = field(default_factory=dict)
    pulled: dict[str, int] = field(default_factory=dict)
    dense_pulled: dict[str, int] = field(default_factory=dict)

    def push(self, pieces: Sequence[Piece], encoded: Sequence[EncodedBytes]) -> None:
        for piece, payload in zip(pieces, encoded, strict=True):
            _add(self.dense, piece, 4 * piece.numel)
            _add(self.pushed, piece, payload.nbytes)

    def pull(self, pieces: Sequence[Piece], encoded: Sequence[EncodedBytes]) -> None:
        for piece, payload in zip(pieces, encoded, strict=True):
            _add(self.dense_pulled, piece, 4 * piece.numel)
            _add(self.pulled, piece, payload.nbytes)

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
