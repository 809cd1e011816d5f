"""``Servers``: all servers of a run, as one worker sees them, and which pieces each owns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from thinwire.checks import check_whole
from thinwire.client.join import JoinRequest, checksums_of
from thinwire.client.session import ServerSession
from thinwire.client.updates import Updates
from thinwire.errors import ConfigError
from thinwire.exchange.roles import entries
from thinwire.gradient.pieces import Key, batches, cut, piece_numel_for, place
from thinwire.keys.settings import WorkerKeys
from thinwire.model import describe
from thinwire.recipe import Recipe
from thinwire.transport import tcp
from thinwire.transport.base import Connection
from thinwire.wire.body import EncodedBytes
from thinwire.wire.messages import Push, Reason

Connect = Callable[[str, float], Connection]
"""Makes a connection to an address, within so many seconds."""


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """The addresses of all servers, in the order of their numbers, and how to reach them."""

    addresses: Sequence[str]
    connect: Connect
    deadline_seconds: float


class Servers:
    """Joins all servers. Pieces are known by their number."""

    def __init__(
        self,
        servers: ServerAddresses,
        recipe: Recipe,
        keys: Sequence[Key],
        *,
        rank: int,
        workers: int,
        version: int,
        weights: Iterable[Tensor] = (),
    ) -> None:
        """``version`` is the last one that was applied to the weights.

        ``weights`` are those of ``keys``: servers compare them with what other workers begin with.
        """
        addresses = servers.addresses
        if not addresses or isinstance(addresses, str):
            raise ConfigError(f"servers {addresses!r}, expected a list of addresses")
        if not keys:
            raise ConfigError("this network has no parameter to train")
        self.pieces = cut(keys, most_numel=piece_numel_for(keys, owners=workers))
        self._owners = place(self.pieces, owners=len(addresses))
        self.updates = Updates(self.pieces, version=version)
        if len(addresses) > len(self.pieces):
            raise ConfigError(
                f"{len(addresses)} servers for a network of {len(self.pieces)} pieces: some would "
                "have nothing to do, use fewer"
            )
        self._workers = workers
        self._checksums = checksums_of(weights) if version == 0 else ()
        self.sessions: list[ServerSession] = []
        try:
            self._join(servers, recipe, keys, rank)
            self._check_together()
        except BaseException as error:
            self.abandon(str(error))
            raise

    def _join(
        self, servers: ServerAddresses, recipe: Recipe, keys: Sequence[Key], rank: int
    ) -> None:
        count = len(servers.addresses)
        for number, address in enumerate(servers.addresses):
            description = describe(
                list(keys), recipe, server=number, servers=count, lead=self._lead()
            )
            pieces, checksums = len(self.pieces), self._checksums
            self.sessions.append(
                ServerSession(
                    _to(servers.connect, address),
                    JoinRequest(rank, self._workers, pieces, description, checksums),
                    self.updates,
                    deadline_seconds=servers.deadline_seconds,
                )
            )

    def _lead(self) -> int:
        """The run of server 0, which is joined first."""
        return self.sessions[0].run if self.sessions else 0

    def _check_together(self) -> None:
        """Synchronous servers are at most one version apart, unless one has lost its log."""
        first, last = (
            choose(self.sessions, key=lambda session: session.version) for choose in (min, max)
        )
        if self._is_synchronous(first) and last.version - first.version > 1:
            raise ConfigError(
                f"{first.address} is at version {first.version}, but {last.address} at "
                f"{last.version}: has one of them lost its log?"
            )

    def _is_synchronous(self, session: ServerSession) -> bool:
        return session.rules == (self._workers, 0)

    def check_synchronous(self) -> None:
        """Raise ConfigError unless every version waits for all workers."""
        for session in self.sessions:
            quorum, staleness = session.rules
            if not self._is_synchronous(session):
                raise ConfigError(
                    f"{session.address} is not synchronous (quorum {quorum} of {self._workers}, "
                    f"staleness {staleness}): start it without --quorum, or use tw.Client"
                )

    @property
    def version(self) -> int:
        """The newest one that all servers have, as far as this worker knows."""
        return min(session.version for session in self.sessions)

    @property
    def counted(self) -> int:
        """How many steps of this worker any server had counted when it joined."""
        return max(session.counted for session in self.sessions)

    @property
    def sent_nbytes(self) -> int:
        return sum(session.sent_nbytes for session in self.sessions)

    @property
    def received_nbytes(self) -> int:
        return sum(session.received_nbytes for session in self.sessions)

    def by_owner(self, numbers: Sequence[int]) -> list[list[int]]:
        """These pieces, for each server that owns some of them, in parts that fit into frames."""
        by_owner: dict[int, list[int]] = {}
        for number in sorted(numbers):
            by_owner.setdefault(self._owners[number], []).append(number)
        return [part for owned in by_owner.values() for part in self._parts(owned)]

    def _parts(self, numbers: Sequence[int]) -> list[list[int]]:
        order = {self.pieces[number]: number for number in numbers}
        return [[order[piece] for piece in batch] for batch in batches(list(order))]

    def push(
        self,
        step: int,
        version: int,
        rate: float,
        numbers: Sequence[int],
        sent: Sequence[EncodedBytes],
    ) -> None:
        """Push pieces of one owner. Payloads are copied: a retry may have to send them again."""
        kept = [encoded.copied() for encoded in sent]
        self.sessions[self._owners[numbers[0]]].push(
            step, Push(version, rate, entries(numbers, kept))
        )

    def close(self) -> None:
        """Tell all of them that this worker is done, so that they do not wait for it."""
        for session in self.sessions:
            session.close()

    def abandon(self, text: str) -> None:
        """Tell all of them that this worker cannot go on, and may come back."""
        for session in self.sessions:
            session.close(Reason.STOPPING, text)


def _to(connect: Connect, address: str) -> Callable[[float], Connection]:
    return lambda seconds: connect(address, seconds)


def connect_with(keys: WorkerKeys | None, *, insecure: bool) -> Connect:
    """Over TCP."""

    def connect(address: str, seconds: float) -> Connection:
        return tcp.connect(address, deadline_seconds=seconds, keys=keys, insecure=insecure)

    return connect


def check_place(rank: int, workers: int) -> None:
    """Refuse a rank that is not among the workers."""
    check_whole(workers, least=1, owner="Client", field="workers")
    check_whole(rank, least=0, owner="Client", field="rank")
    if rank >= workers:
        ranks = "0" if workers == 1 else f"0 to {workers - 1}"
        raise ConfigError(f"Client: rank {rank}, but with workers={workers} ranks are {ranks}")
