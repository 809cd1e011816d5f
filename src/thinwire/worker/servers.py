"""All servers of a run, as one worker sees them: who owns which pieces, and what they said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from thinwire import _native
from thinwire.codec.dense import Float32
from thinwire.encoded import Encoded
from thinwire.errors import ConfigError
from thinwire.feedback.base import is_usable
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import Piece, batches, cut, piece_numel_for
from thinwire.gradient.placement import place
from thinwire.model import describe
from thinwire.recipe import Recipe
from thinwire.transport import zeromq
from thinwire.transport.base import Connection
from thinwire.transport.keys import WorkerCurve
from thinwire.wire.messages import Push, Reason
from thinwire.worker.application import Application
from thinwire.worker.arrivals import Arrivals
from thinwire.worker.desk import Desk
from thinwire.worker.sides import Round, WorkerSide, entries, slice_of
from thinwire.worker.weights import checksums_of

Connect = Callable[[str, float], Connection]
"""Makes a connection to an address, within so many seconds."""


class Servers:
    """Joins all servers. Pieces are known by their number."""

    def __init__(
        self,
        addresses: Sequence[str],
        recipe: Recipe,
        keys: Sequence[Key],
        *,
        connect: Connect,
        rank: int,
        workers: int,
        version: int,
        deadline_seconds: float,
        weights: Iterable[Tensor] = (),
    ) -> None:
        """``version`` is the last one that was applied to the weights.

        ``weights`` are those of ``keys``: servers compare them with what other workers begin with.
        """
        if not addresses or isinstance(addresses, str):
            raise ConfigError(f"servers {addresses!r}, expected a list of addresses")
        if not keys:
            raise ConfigError("this network has no parameter to train")
        self.pieces = cut(keys, most_numel=piece_numel_for(keys, owners=workers))
        self._owners = place(self.pieces, owners=len(addresses))
        self.arrivals = Arrivals(self.pieces, version=version)
        if len(addresses) > len(self.pieces):
            raise ConfigError(
                f"{len(addresses)} servers for a network of {len(self.pieces)} pieces: some would "
                "have nothing to do, use fewer"
            )
        self._workers = workers
        self._checksums = checksums_of(weights) if version == 0 else ()
        self.desks: list[Desk] = []
        try:
            self._join(addresses, recipe, keys, connect, rank, deadline_seconds)
            self._check_together()
        except BaseException as error:
            self.abandon(str(error))
            raise

    def _join(
        self,
        addresses: Sequence[str],
        recipe: Recipe,
        keys: Sequence[Key],
        connect: Connect,
        rank: int,
        deadline_seconds: float,
    ) -> None:
        for number, address in enumerate(addresses):
            description = describe(
                list(keys), recipe, server=number, servers=len(addresses), lead=self._lead()
            )
            self.desks.append(
                Desk(
                    _to(connect, address),
                    Application(
                        rank, self._workers, len(self.pieces), description, self._checksums
                    ),
                    self.arrivals,
                    deadline_seconds=deadline_seconds,
                )
            )

    def _lead(self) -> int:
        """The run of server 0, which is joined first."""
        return self.desks[0].run if self.desks else 0

    def _check_together(self) -> None:
        """Synchronous servers are at most one version apart, unless one has lost its log."""
        first, last = (choose(self.desks, key=lambda one: one.version) for choose in (min, max))
        if self._is_synchronous(first) and last.version - first.version > 1:
            raise ConfigError(
                f"{first.address} is at version {first.version}, but {last.address} at "
                f"{last.version}: has one of them lost its log?"
            )

    def _is_synchronous(self, desk: Desk) -> bool:
        return desk.rules == (self._workers, 0)

    def check_synchronous(self) -> None:
        """Raise ConfigError unless every version waits for all workers."""
        for desk in self.desks:
            quorum, staleness = desk.rules
            if not self._is_synchronous(desk):
                raise ConfigError(
                    f"{desk.address} is not synchronous (quorum {quorum} of {self._workers}, "
                    f"staleness {staleness}): start it without --quorum, or use tw.Client"
                )

    @property
    def version(self) -> int:
        """The newest one that all servers had when this worker heard of them last."""
        return min(desk.version for desk in self.desks)

    @property
    def counted(self) -> int:
        """How many steps of this worker any server had counted when it joined."""
        return max(desk.counted for desk in self.desks)

    def by_owner(self, numbers: Sequence[int]) -> list[list[int]]:
        """These pieces, for each server that owns some of them, in parts that fit into frames."""
        found: dict[int, list[int]] = {}
        for number in sorted(numbers):
            found.setdefault(self._owners[number], []).append(number)
        return [part for owned in found.values() for part in self._parts(owned)]

    def _parts(self, numbers: Sequence[int]) -> list[list[int]]:
        order = {self.pieces[number]: number for number in numbers}
        return [[order[piece] for piece in batch] for batch in batches(list(order))]

    def push(
        self, step: int, version: int, rate: float, numbers: Sequence[int], sent: Sequence[Encoded]
    ) -> None:
        """Send pieces of one owner. Payloads are copied: they may have to be sent again."""
        kept = [Encoded(one.wire_id, one.numel, bytes(one.payload)) for one in sent]
        self.desks[self._owners[numbers[0]]].push(step, Push(version, rate, entries(numbers, kept)))

    def close(self) -> None:
        """Tell all of them that this worker is done: nobody will wait for it."""
        for desk in self.desks:
            desk.close()

    def abandon(self, text: str) -> None:
        """Tell all of them that this worker cannot go on, and may come back."""
        for desk in self.desks:
            desk.close(Reason.STOPPING, text)


def _to(connect: Connect, address: str) -> Callable[[float], Connection]:
    return lambda seconds: connect(address, seconds)


def finite_push(
    side: WorkerSide, pieces: Sequence[Piece], flat: Mapping[str, Tensor], round_: Round
) -> tuple[list[Encoded], int]:
    """What to send for these gradients, and how many pieces were left out of it.

    A piece with an inf or a nan would spoil the weights of all, so that only what was owed for it
    is sent. Only float32 can carry one.
    """
    sent, left_out = side.push(pieces, flat, round_), 0
    for i, (piece, one) in enumerate(zip(pieces, sent, strict=True)):
        if one.wire_id != Float32.wire_id:
            continue
        if not is_usable(_native.sum_squares(slice_of(flat, piece))):
            nothing = {piece.key.name: torch.zeros(piece.key.numel)}
            [sent[i]] = side.push([piece], nothing, round_)
            left_out += 1
    return sent, left_out


def connect_with(keys: WorkerCurve | None, *, insecure: bool) -> Connect:
    """Over ZeroMQ."""

    def connect(address: str, seconds: float) -> Connection:
        return zeromq.connect(address, deadline_seconds=seconds, curve=keys, insecure=insecure)

    return connect
