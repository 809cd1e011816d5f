"""Who exchanges with whom: the links between ranks, and the exchange over them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from thinwire.errors import ConfigError, WorkerLost
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import Piece, cut, piece_numel_for
from thinwire.recipe import Recipe
from thinwire.worker.allgather import AllGather
from thinwire.worker.exchange import Exchange
from thinwire.worker.hierarchy import Follower, Leader
from thinwire.worker.link import Link, new_store
from thinwire.worker.served import Served
from thinwire.worker.servers import Connect, Servers
from thinwire.worker.sharded import Sharded

EXCHANGES: dict[str, type[Sharded] | type[AllGather]] = {
    "sharded": Sharded,
    "allgather": AllGather,
}
SERVERS = "servers"
HIERARCHIES = ("flat", "host")

MOST_GRACE_SECONDS = 10.0
"""Who waits for a rank that waits for others must not give up first: it would blame the wrong one.
So each link on the way is waited for longer than the one before, by this or by a fifth of the
deadline, and the last one until the deadline."""


@dataclass(frozen=True, slots=True)
class Team:
    """This rank's place among those that train one model."""

    rank: int
    size: int
    pieces: Sequence[Piece]
    exchange: Exchange
    links: Sequence[Link | Served]
    """All ways out of this process."""
    layout: str
    """Equal where states of single ranks fit each other: the same pieces in the same places."""


def gather_team(
    recipe: Recipe,
    keys: Sequence[Key],
    ranks: Sequence[int],
    *,
    exchange: str,
    hierarchy: str,
    caller: str,
    seed: int,
    deadline_seconds: float,
    servers: Sequence[str] = (),
    connect: Connect | None = None,
    weights: Sequence[Tensor] = (),
    alike: object = None,
) -> Team:
    """Join the global ``ranks``, all of which must call this alike; refuses if they do not.

    ``caller`` is the function that a user knows; ``alike`` is what else must be the same.
    ``connect`` leads to ``servers``, where they do the averaging; they compare ``weights``, those
    of ``keys``, with what other ranks begin with.
    """
    if dist.get_rank() not in ranks:
        raise ConfigError(f"rank {dist.get_rank()} is none of {list(ranks)}")
    votes = _Votes(ranks, caller, deadline_seconds)
    try:
        hosts = hosts_of(ranks) if hierarchy == "host" else [[rank] for rank in ranks]
    except ConfigError:
        votes.vote("refused")  # so that the others need not wait for this rank
        raise
    settings = (caller, list(keys), recipe, exchange, hierarchy, seed, hosts, list(servers), alike)
    votes.check_alike(_digest(settings))
    pieces = cut(keys, most_numel=piece_numel_for(keys, owners=len(hosts)))
    links = votes.make_links(hosts)
    ways: list[Link | Served] = [*links.inside, *links.between]
    if not links.between:
        exchanging: Exchange = Follower(pieces, links.inside)
    else:
        if connect is None:
            exchanging = EXCHANGES[exchange](recipe, pieces, links.between, seed=seed)
        else:
            rank = [host[0] for host in hosts].index(dist.get_rank())
            exchanging = served = _served(
                recipe,
                keys,
                weights,
                pieces,
                servers,
                connect,
                rank,
                len(hosts),
                seed,
                deadline_seconds,
            )
            ways.append(served)
        if links.inside:
            exchanging = Leader(exchanging, pieces, links.inside)
    layout = _digest(([piece.name for piece in pieces], exchange, hosts))
    rank = list(ranks).index(dist.get_rank())
    return Team(rank, len(ranks), pieces, exchanging, ways, layout)


def _served(
    recipe: Recipe,
    keys: Sequence[Key],
    weights: Sequence[Tensor],
    pieces: Sequence[Piece],
    addresses: Sequence[str],
    connect: Connect,
    rank: int,
    workers: int,
    seed: int,
    deadline_seconds: float,
) -> Served:
    def join(version: int) -> Servers:
        servers = Servers(
            addresses,
            recipe,
            keys,
            connect=connect,
            rank=rank,
            workers=workers,
            version=version,
            deadline_seconds=deadline_seconds,
            weights=weights,
        )
        servers.check_synchronous()
        return servers

    return Served(
        recipe,
        pieces,
        join,
        rank=rank,
        workers=workers,
        seed=seed,
        deadline_seconds=deadline_seconds,
    )


class _Links:
    """The links of this rank: inside its host, and between hosts if it leads one."""

    def __init__(self, hosts: Sequence[Sequence[int]], deadline_seconds: float) -> None:
        self._deadline = deadline_seconds
        own = next(host for host in hosts if dist.get_rank() in host)
        alone, leads = len(own) == 1, dist.get_rank() == own[0]
        self.inside = () if alone else self._pair(own, 3, 0)
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
    """What each rank wants, before any link is made: they may not even want the same ones; and
    whether it has them."""

    def __init__(self, ranks: Sequence[int], caller: str, deadline_seconds: float) -> None:
        self._ranks, self._caller, self._deadline = ranks, caller, deadline_seconds
        self._store = new_store(ranks)

    def vote(self, own: str) -> None:
        self._store.set(str(dist.get_rank()), own)

    def check_alike(self, own: str) -> None:
        """Refuse if a rank trains another network, or was given other settings."""
        self.vote(own)
        for rank in self._ranks:
            if self._hear(rank, str(rank), f"did not call {self._caller}") != own:
                raise ConfigError(
                    f"rank {rank} calls {self._caller} with another network, recipe, exchange, "
                    "hierarchy, group, servers or seed than this rank: all must be alike"
                )

    def make_links(self, hosts: Sequence[Sequence[int]]) -> _Links:
        """Returns when all ranks have theirs.

        One that went on sooner, to an error of its own, would break those that others are still
        making, and they would not hear why.
        """
        made = "no"
        try:
            links = _Links(hosts, self._deadline)
            made = "yes"
        finally:
            self._store.set(f"links of {dist.get_rank()}", made)
        for rank in self._ranks:
            if self._hear(rank, f"links of {rank}", "did not make its links") != "yes":
                raise WorkerLost(f"rank {rank} could not reach all others: see its own error")
        return links

    def _hear(self, rank: int, key: str, missing: str) -> str:
        """``missing`` is what a rank did not do if nothing is heard."""
        try:
            self._store.wait([key], timedelta(seconds=self._deadline))
            return self._store.get(key).decode()
        except RuntimeError as error:
            raise WorkerLost(
                f"rank {rank} is gone, or {missing} within {self._deadline:g} s"
            ) from error
