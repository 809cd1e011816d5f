"""Who exchanges with whom: the links between ranks, and the exchange over them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from thinwire.errors import ConfigError, WorkerLost
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import Piece, cut, piece_numel_for
from thinwire.recipe import Recipe
from thinwire.worker.allgather import AllGather
from thinwire.worker.exchange import Exchange
from thinwire.worker.hierarchy import Follower, Leader
from thinwire.worker.link import Link, new_store
from thinwire.worker.sharded import Sharded

EXCHANGES: dict[str, type[Sharded] | type[AllGather]] = {
    "sharded": Sharded,
    "allgather": AllGather,
}
HIERARCHIES = ("flat", "host")

MOST_GRACE_SECONDS = 10.0
"""Who waits for a rank that waits for others must not give up first: it would blame the wrong one.
So each link on the way is waited for longer than the one before, by this or by the deadline."""


@dataclass(frozen=True, slots=True)
class Team:
    """This rank's place among those that train one model."""

    rank: int
    size: int
    pieces: Sequence[Piece]
    exchange: Exchange
    links: Sequence[Link]


def gather_team(
    recipe: Recipe,
    keys: Sequence[Key],
    ranks: Sequence[int],
    *,
    exchange: str,
    hierarchy: str,
    seed: int,
    deadline_seconds: float,
) -> Team:
    """Join the global ``ranks``, all of which must call this alike; refuses if they do not."""
    hosts = hosts_of(ranks) if hierarchy == "host" else [[rank] for rank in ranks]
    own = next(host for host in hosts if dist.get_rank() in host)
    pieces = cut(keys, most_numel=piece_numel_for(keys, owners=len(hosts)))
    settings = (list(keys), recipe, exchange, hierarchy, seed, list(ranks))
    digest = hashlib.sha256(repr(settings).encode()).digest()
    _check_alike(ranks, digest, deadline_seconds)
    grace = min(deadline_seconds, MOST_GRACE_SECONDS)

    def link_pair(members: Sequence[int], *places: int) -> tuple[Link, Link]:
        """``places``: how many links come before each of the two."""
        first, second = (
            Link(members, deadline_seconds=deadline_seconds, grace_seconds=place * grace)
            for place in places
        )
        return first, second

    inside = link_pair(own, 0, 3) if len(own) > 1 else ()
    leads, places = dist.get_rank() == own[0], (1, 2) if inside else (0, 1)
    between = link_pair([host[0] for host in hosts], *places) if leads else ()
    exchanging: Exchange | None = None
    if between:
        exchanging = EXCHANGES[exchange](recipe, pieces, between, seed=seed)
    if inside:
        exchanging = (
            Follower(pieces, inside) if exchanging is None else Leader(exchanging, pieces, inside)
        )
    if exchanging is None:
        raise ConfigError(f"rank {dist.get_rank()} is none of {list(ranks)}")
    rank = list(ranks).index(dist.get_rank())
    return Team(rank, len(ranks), pieces, exchanging, (*inside, *between))


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


def _check_alike(ranks: Sequence[int], digest: bytes, deadline_seconds: float) -> None:
    """Refuse if a rank trains another network, or was given other settings.

    Before any link is made: ranks that disagree may not even want the same ones.
    """
    store, own = new_store(ranks), digest.hex()
    store.set(str(dist.get_rank()), own)
    for rank in ranks:
        try:
            store.wait([str(rank)], timedelta(seconds=deadline_seconds))
        except RuntimeError as error:
            raise WorkerLost(
                f"rank {rank} is gone, or did not call compress_ddp within {deadline_seconds:g} s"
            ) from error
        if store.get(str(rank)).decode() != own:
            raise ConfigError(
                f"rank {rank} calls compress_ddp with another network, recipe, exchange, "
                "hierarchy, group or seed than this rank: all must be alike"
            )
