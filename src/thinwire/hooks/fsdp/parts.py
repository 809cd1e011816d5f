"""``Shards``: how fully_shard cuts parameters, and states of ranks that were cut otherwise.

Pure: nothing is loaded here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from thinwire.errors import ConfigError
from thinwire.exchange.resharding import ExchangeState, States, join_pieces
from thinwire.feedback.base import State
from thinwire.hooks.rank_state import CompressionState, RankState

Local = dict[str, dict[str, Any]]
"""A ``RankState``'s part of local steps."""


@dataclass(frozen=True, slots=True)
class Shards:
    """``shapes`` are those of whole parameters, of which this rank has part ``index`` of ``count``.

    Parts are ranges of rows, as ``torch.chunk`` makes them; so they are ranges of the flat tensor.
    """

    index: int
    count: int
    shapes: Mapping[str, tuple[int, ...]]

    def span(self, name: str, index: int, count: int) -> tuple[int, int]:
        """The elements of one of ``count`` parts."""
        first, *rest = self.shapes[name] or (1,)
        rows, row = -(-first // count), math.prod(rest)
        return min(index * rows, first) * row, min((index + 1) * rows, first) * row

    def numels(self, index: int, count: int) -> dict[str, int]:
        """Elements of every parameter in one of ``count`` parts."""
        spans = {name: self.span(name, index, count) for name in self.shapes}
        return {name: stop - start for name, (start, stop) in spans.items() if stop > start}

    def recut(self, states: CompressionState) -> list[RankState]:
        """This part of every replica, from the states of all parts of all replicas."""
        cuts = {place_in(key, state) for key, state in states.items()}
        (count,) = {count for _, count in cuts}
        replicas: dict[int, dict[int, RankState]] = {}
        for key, state in states.items():
            replicas.setdefault(state["rank"], {})[place_in(key, state)[0]] = state
        if any(len(parts) != count for parts in replicas.values()):
            raise ConfigError(
                f"states of {', '.join(states)}: those of all ranks of one run go here"
            )
        whole = [[parts[index] for index in range(count)] for _, parts in sorted(replicas.items())]
        fresh = [self._replica(parts) for parts in whole]
        owed = [
            join_pieces([_owed(parts[index], "pull") for parts in whole]) for index in range(count)
        ]
        fresh[0]["exchange"]["pull"] = self._own(owed)
        return fresh

    def _replica(self, parts: Sequence[RankState]) -> RankState:
        push = self._own([_owed(part, "push") for part in parts])
        exchange: ExchangeState = {"push": push, "pull": {}}
        shard = {"index": self.index, "count": self.count}
        fresh: RankState = {**parts[0], "layout": "", "exchange": exchange, "shard": shard}
        if "local" in fresh:
            fresh["local"] = self._local([part["local"] for part in parts])
        return fresh

    def _local(self, parts: Sequence[Local]) -> Local:
        """With local steps: weights, and the state of the optimizer of global ones."""
        fresh: Local = dict(parts[0])
        for section in ("global", "local"):
            fresh[section] = self._rows([part[section] for part in parts])
        outer = [_by_key(part.get("outer", {})) for part in parts]
        fresh["outer"] = _by_key({key: self._rows([one[key] for one in outer]) for key in outer[0]})
        return fresh

    def _rows(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Of tensors whose parts are these. Those that are not cut are alike in all parts."""
        found = {name: x for name, x in parts[0].items() if name not in self.shapes or not x.dim()}
        for name, (start, stop) in self._spans().items():
            there = [part[name] for part in parts if name in part]
            if stop > start and name not in found and there:
                row = max(1, math.prod(self.shapes[name][1:]))
                found[name] = torch.cat(there)[start // row : stop // row]
        return found

    def _spans(self) -> dict[str, tuple[int, int]]:
        return {name: self.span(name, self.index, self.count) for name in self.shapes}

    def _own(self, parts: Sequence[States]) -> States:
        """What this rank has of parameters whose parts are these."""
        names = [name for name in self.numels(self.index, self.count) if name in parts[0]]
        return {name: self._cut(name, parts) for name in names}

    def _cut(self, name: str, parts: Sequence[States]) -> State:
        count = len(parts)
        there = [i for i in range(count) if name in self.numels(i, count)]
        if any(name not in parts[i] for i in there):
            raise ConfigError(f"the parts of {name!r} hold different buffers: are all of one run?")
        start, stop = self.span(name, self.index, self.count)
        found: State = {}
        for key, buffer in parts[0][name].items():
            if buffer.dim() == 0:
                found[key] = buffer
            else:
                found[key] = torch.cat([parts[i][name][key].reshape(-1) for i in there])[start:stop]
        return found


def _by_key(tree: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """With the outer keys inside."""
    turned: dict[str, dict[str, Any]] = {}
    for outer, branch in tree.items():
        for inner, leaf in branch.items():
            turned.setdefault(inner, {})[outer] = leaf
    return turned


def place_in(key: str, state: RankState) -> tuple[int, int]:
    """Which part of a replica a state is of, and of how many."""
    shard = cast(Mapping[str, object], state).get("shard")
    if not isinstance(shard, Mapping):
        raise ConfigError(f"the state of {key} has no 'shard': it is not of compress_fsdp")
    index, count = shard.get("index"), shard.get("count")
    if not (isinstance(index, int) and isinstance(count, int) and 0 <= index < count):
        raise ConfigError(
            f"the state of {key}: 'shard' is {dict(shard)!r}, expected part and count"
        )
    return index, count


def _owed(state: RankState, direction: str) -> States:
    # torch.distributed.checkpoint leaves out what is empty.
    return state.get("exchange", {}).get(direction, {})
