"""``rendezvous``: meet the ranks that train one model, and make the exchange among them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from thinwire.client.as_exchange import ServersExchange
from thinwire.client.servers import Connect, ServerAddresses, Servers
from thinwire.errors import ConfigError, WorkerLost
from thinwire.exchange.allgather import AllGather
from thinwire.exchange.base import Endpoint, Exchange
from thinwire.exchange.hierarchy import Follower, Leader
from thinwire.exchange.link import Link, new_store
from thinwire.exchange.sharded import Sharded
from thinwire.gradient.pieces import Key, Piece, cut, piece_numel_for
from thinwire.recipe import Recipe

EXCHANGES: dict[str, type[Sharded] | type[AllGather]] = {
    "sharded": Sharded,
    "allgather": AllGather,
}
SERVERS = "servers"
HIERARCHIES = ("flat", "host")

MOST_GRACE_SECONDS = 10.0
"""A rank that waits for one that waits for others must not time out first: it would blame the wrong
one. So the timeout of each link on the way is longer than that of the one before, by this or by a
fifth of the deadline, and that of the last one is the deadline."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """Parameter servers, where they average instead of the ranks."""

    addresses: Sequence[str]
    connect: Connect
    weights: Sequence[Tensor]
    """Those of the keys: servers compare them with what other ranks begin with."""


@dataclass(frozen=True, slots=True)
class RendezvousSettings:
    """What all ``ranks``, which are global ones, must call ``rendezvous`` with alike."""

    caller: str
    """The function that a user knows, for errors."""
    recipe: Recipe
    keys: Sequence[Key]
    ranks: Sequence[int]
    exchange: str
    seed: int
    deadline_seconds: float
    hierarchy: str = "flat"
    servers: ServerAccess | None = None
    undo: bool = False
    """Whether a step may overflow, which undoes it: at the price of twice the state."""
    alike: object = None
    """What else must be the same, by its ``repr``."""

    def digest(self, hosts: Sequence[Sequence[int]]) -> str:
        """Equal where ranks agree."""
        addresses = [] if self.servers is None else list(self.servers.addresses)
        keys, where = list(self.keys), (self.exchange, self.hierarchy)
        return _digest(
            (self.caller, keys, self.recipe, *where, self.seed, hosts, addresses, self.alike)
        )


@dataclass(frozen=True, slots=True)
class Membership:
    """This rank's place among those that train one model."""

    rank: int
    size: int
    pieces: Sequence[Piece]
    exchange: Exchange
    endpoints: Sequence[Endpoint]
    """All ways out of this process."""
    layout: str
    """Equal where states of single ranks fit each other: the same pieces in the same places."""


def rendezvous(settings: RendezvousSettings) -> Membership:
    """Meet all other ranks; refuses if one of them was called with other settings."""
    votes = _Votes(settings.ranks, settings.caller, settings.deadline_seconds)
    try:
        hosts = _hosts(settings)
    except ConfigError:
        votes.vote("refused")  # so that the others need not wait for this rank
        raise
    votes.check_alike(settings.digest(hosts))
    pieces = cut(settings.keys, most_numel=piece_numel_for(settings.keys, owners=len(hosts)))
    exchange, endpoints = _make_exchange(settings, hosts, pieces, votes.make_links(hosts))
    return Membership(
        rank=list(settings.ranks).index(dist.get_rank()),
        size=len(settings.ranks),
        pieces=pieces,
        exchange=exchange,
        endpoints=endpoints,
        layout=_digest(([piece.name for piece in pieces], settings.exchange, hosts)),
    )


def _hosts(settings: RendezvousSettings) -> list[list[int]]:
    if settings.hierarchy == "host":
        return hosts_of(settings.ranks)
    return [[rank] for rank in settings.ranks]


def _make_exchange(
    settings: RendezvousSettings,
    hosts: Sequence[Sequence[int]],
    pieces: Sequence[Piece],
    links: _Links,
) -> tuple[Exchange, list[Endpoint]]:
    endpoints: list[Endpoint] = [*links.inside, *links.between]
    if not links.between:
        return Follower(pieces, links.inside), endpoints
    exchange: Exchange
    if settings.servers is None:
        make = EXCHANGES[settings.exchange]
        exchange = make(
            settings.recipe, pieces, links.between, seed=settings.seed, undo=settings.undo
        )
    else:
        rank = [host[0] for host in hosts].index(dist.get_rank())
        exchange = by_servers = _through_servers(
            settings, settings.servers, pieces, rank=rank, workers=len(hosts)
        )
        endpoints.append(by_servers)
    return (Leader(exchange, pieces, links.inside) if links.inside else exchange), endpoints


def _through_servers(
    settings: RendezvousSettings,
    access: ServerAccess,
    pieces: Sequence[Piece],
    *,
    rank: int,
    workers: int,
) -> ServersExchange:
    def join(version: int) -> Servers:
        servers = Servers(
            ServerAddresses(access.addresses, access.connect, settings.deadline_seconds),
            settings.recipe,
            settings.keys,
            rank=rank,
            workers=workers,
            version=version,
            weights=access.weights,
        )
        servers.check_synchronous()
        return servers

    return ServersExchange(
        settings.recipe,
        pieces,
        join,
        rank=rank,
        workers=workers,
        seed=settings.seed,
        deadline_seconds=settings.deadline_seconds,
    )


class _Links:
    """The links of this rank: inside its host, and between hosts if it leads one."""

    def __init__(self, hosts: Sequence[Sequence[int]], deadline_seconds: float) -> None:
        self._deadline = deadline_seconds
        host = next(host for host in hosts if dist.get_rank() in host)
        alone, leads = len(host) == 1, dist.get_rank() == host[0]
        self.inside = () if alone else self._pair(host, 3, 0)
        places = (1, 0) if alone else (2, 1)
        self.between = self._pair([host[0] for host in hosts], *places) if leads else ()

    def _pair(self, members: Sequence[int], *places: int) -> tuple[Link, Link]:
        """``places``: how many links come after each of the two."""
        grace = min(self._deadline / 5, MOST_GRACE_SECONDS)
        first, second = (
            Link(
                members,
                deadline_seconds=self._deadline,
                patience_seconds=self._deadline - place * grace,
            )
            for place in places
        )
        return first, second


def _digest(settings: object) -> str:
    return hashlib.sha256(repr(settings).encode()).hexdigest()


def ranks_of(group: dist.ProcessGroup | None, *, caller: str) -> list[int]:
    """The global ranks of a group, of which this rank must be one; None is the default group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"{caller}: torch.distributed has no process group: call init_process_group first, or "
            "start with torchrun"
        )
    # Not a group, but what all ranks outside of any group have: torch knows no ranks of it.
    outside: object = dist.GroupMember.NON_GROUP_MEMBER
    if group == outside:
        raise ConfigError(
            f"{caller}: rank {dist.get_rank()} is not in the group that it was given: only ranks "
            "of a group may call it"
        )
    return dist.get_process_group_ranks(group)


def hosts_of(ranks: Sequence[int]) -> list[list[int]]:
    """The ranks of each host. Those of one host follow each other, as torchrun numbers them."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if not local.isdigit() or int(local) < 1:
        raise ConfigError(
            "hierarchy='host' needs the environment variable LOCAL_WORLD_SIZE, the number of ranks "
            "on this host, which torchrun sets"
        )
    hosts: dict[int, list[int]] = {}
    for rank in ranks:
        hosts.setdefault(rank // int(local), []).append(rank)
    if len({len(host) for host in hosts.values()}) > 1:
        raise ConfigError(
            "hierarchy='host' needs the same number of ranks on every host, to give each the same "
            f"weight; here hosts have {[len(host) for host in hosts.values()]}"
        )
    return list(hosts.values())


class _Votes:
    """The agreement of ranks in a store: before links are made on the settings, which say which
    links there are, and then that all links are made."""

    def __init__(self, ranks: Sequence[int], caller: str, deadline_seconds: float) -> None:
        self._ranks, self._caller, self._deadline = ranks, caller, deadline_seconds
        self._store = new_store(ranks)

    def vote(self, digest: str) -> None:
        self._store.set(str(dist.get_rank()), digest)

    def check_alike(self, digest: str) -> None:
        """Refuse if a rank trains another network, or was given other settings."""
        self.vote(digest)
        for rank in self._ranks:
            if self._read(rank, str(rank), f"did not call {self._caller}") != digest:
                raise ConfigError(
                    f"rank {rank} calls {self._caller} with another network, recipe, exchange, "
                    "hierarchy, group, servers or seed than this rank: all must be alike"
                )

    def make_links(self, hosts: Sequence[Sequence[int]]) -> _Links:
        """Returns when all ranks have theirs.

        A rank that went on sooner, to an error of its own, would break links that others are still
        making, and they would not know why.
        """
        made = "no"
        try:
            links = _Links(hosts, self._deadline)
            made = "yes"
        finally:
            self._store.set(f"links of {dist.get_rank()}", made)
        for rank in self._ranks:
            if self._read(rank, f"links of {rank}", "did not make its links") != "yes":
                raise WorkerLost(f"rank {rank} could not reach all others: see its own error")
        return links

    def _read(self, rank: int, key: str, missing: str) -> str:
        """``missing`` is what a rank did not do if there is a timeout."""
        try:
            self._store.wait([key], timedelta(seconds=self._deadline))
            return self._store.get(key).decode()
        except RuntimeError as error:
            raise WorkerLost(
                f"rank {rank} is gone, or {missing} within {self._deadline:g} s"
            ) from error
