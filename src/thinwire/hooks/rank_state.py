"""``RankState``: what a checkpoint holds of each rank, and ``checked_states``, which validates it.

Pure: nothing is loaded here, so that a state which is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypedDict, cast

from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.exchange.resharding import ExchangeState, check_buffer, check_names, place_of

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class RankState(TypedDict):
    """One rank's state, in plain tensors and numbers."""

    steps: int
    rank: int
    workers: int
    layout: str
    exchange: ExchangeState
    shard: NotRequired[dict[str, int]]
    """With ``compress_fsdp``: the "index" of the part that the rank holds, and their "count"."""
    local: NotRequired[dict[str, dict[str, Tensor | dict[str, Tensor]]]]
    """With local steps: the global weights, and this rank's own. ``GlobalWeights`` checks it."""


CompressionState = dict[str, RankState]
"""By rank: ``{"rank 0 of 4": ...}``. Ranks differ, and none must be taken for another."""

_EXPECTED = "expected what state_dict() returned: {'rank 0 of 2': {'steps': ..., ...}}"


Sizes = Callable[[str, RankState], Mapping[str, int]]
"""The numbers of elements of parameters, by name, on the rank that a state is of."""


def checked_states(states: object, sizes: Sizes) -> CompressionState:
    """All of ``states`` in one mapping, if each is what a ``state_dict`` returned."""
    if isinstance(states, Mapping | str) or not isinstance(states, Iterable):
        raise ConfigError(
            f"load_state_dicts: a {type(states).__name__}, expected a list of the states of all "
            "ranks"
        )
    every: dict[str, object] = {}
    for state in states:
        every.update(_mapping(state, "a state"))
    for key, value in every.items():
        state = _mapping(value, f"the state of {key}")
        _check_rank(key, state, sizes(key, cast(RankState, state)))
    return cast(CompressionState, every)


def _mapping(value: object, what: str) -> Mapping[str, object]:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return value
    raise ConfigError(f"{what} is a {type(value).__name__}, {_EXPECTED}")


def _check_rank(key: str, state: Mapping[str, object], sizes: Mapping[str, int]) -> None:
    _check_number(key, state, "steps", least=0)
    workers = _check_number(key, state, "workers", least=1)
    rank = _check_number(key, state, "rank", least=0)
    if rank >= workers:
        raise ConfigError(f"the state of {key}: 'rank' {rank} of 'workers' {workers}")
    if not isinstance(state.get("layout"), str):
        raise ConfigError(f"the state of {key}: {_found(state, 'layout')}, expected a text")
    # torch.distributed.checkpoint leaves out what is empty.
    exchange = _mapping(state.get("exchange", {}), f"'exchange' in the state of {key}")
    for section in ("push", "pull"):
        owed = _mapping(exchange.get(section, {}), f"{section} in the state of {key}")
        _check_owed(
            {name: _mapping(x, f"{section} of {name!r}") for name, x in owed.items()}, sizes
        )


def _check_number(key: str, state: Mapping[str, object], field: str, *, least: int) -> int:
    value = state.get(field)
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise ConfigError(
        f"the state of {key}: {_found(state, field)}, expected a whole number from {least} on"
    )


def _found(state: Mapping[str, object], field: str) -> str:
    return f"{field!r} is {state[field]!r}" if field in state else f"no {field!r}"


def _check_owed(owed: Mapping[str, Mapping[str, object]], sizes: Mapping[str, int]) -> None:
    """What a rank owes, by parameter or piece: every one has the same kinds of buffers."""
    places = {name: place_of(name) if name not in sizes else (name, 0, None) for name in owed}
    check_names((parameter for parameter, _, _ in places.values()), sizes)
    kinds = None
    for name, buffers in owed.items():
        parameter, start, stop = places[name]
        numel = (sizes[parameter] if stop is None else stop) - start
        single = {key: check_buffer(key, x, name, numel).dim() == 0 for key, x in buffers.items()}
        kinds = single if kinds is None else kinds
        if single != kinds:
            raise ConfigError(
                f"{name!r} has {_described(single)}, others {_described(kinds)}: are all states of "
                "one run?"
            )


def _described(kinds: Mapping[str, bool]) -> str:
    return (
        ", ".join(
            f"{key} (one number)" if single else f"{key} (elements)"
            for key, single in sorted(kinds.items())
        )
        or "nothing"
    )
