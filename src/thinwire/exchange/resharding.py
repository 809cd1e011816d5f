"""Reshard compressor state: by parameter instead of by piece, and for another number of workers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.feedback.base import State
from thinwire.gradient.pieces import Piece

States = dict[str, State]

ExchangeState = dict[str, States]
"""What a rank owes: "push" as a worker, by parameter, and "pull" as a server, by piece. Empty for a
rank that leaves both to another one of its host."""

_PIECE_NAME = re.compile(r"(?P<name>.+)\[(?P<start>\d+):(?P<stop>\d+)\]")


def by_parameter(pieces: Sequence[Piece], states: Mapping[str, State]) -> States:
    """Join the states of pieces. Gradients without any state yet are left out."""
    joined: States = {}
    for name, parts in _by_name(pieces).items():
        if all(piece.name in states for piece in parts):
            cut = [states[piece.name] for piece in parts]
            joined[name] = {key: _join([state[key] for state in cut]) for key in cut[0]}
    return joined


def by_piece(pieces: Sequence[Piece], states: Mapping[str, Mapping[str, Tensor]]) -> States:
    """Cut the states of parameters. Refuses names that are none, and sizes that do not fit."""
    groups = _by_name(pieces)
    check_names(states, groups)
    return {
        piece.name: {key: _cut(key, buffer, piece) for key, buffer in states[name].items()}
        for name, parts in groups.items()
        if name in states
        for piece in parts
    }


def check_names(names: Iterable[str], trained: Collection[str]) -> None:
    unknown = sorted(set(names) - set(trained))
    if unknown:
        raise ConfigError(
            f"state of {', '.join(unknown)}, but no parameter that is trained has that name: is it "
            "frozen now?"
        )


def join_pieces(states: Sequence[States]) -> States:
    """The states of pieces that several owners hold, by parameter, whatever the pieces were."""
    parts: dict[str, dict[int, State]] = {}
    for owned in states:
        for piece_name, state in owned.items():
            name, start, _ = place_of(piece_name)
            parts.setdefault(name, {})[start] = state
    return {name: _joined(name, [cut[at] for at in sorted(cut)]) for name, cut in parts.items()}


def reassign(states: Sequence[States], *, workers: int) -> list[States]:
    """The states of N workers as those of ``workers``, with the same mean.

    Worker i's go to worker i modulo the new number, added up and multiplied by new / N.
    """
    fresh: list[States] = [{} for _ in range(workers)]
    factor = workers / max(1, len(states))
    for rank, state in enumerate(states):
        for name, buffers in state.items():
            target = fresh[rank % workers].setdefault(name, {})
            for key, buffer in buffers.items():
                _add_to(target, key, buffer, factor, name)
    return fresh


def owe_also(push: States, pulls: Mapping[str, Mapping[str, Tensor]]) -> States:
    """The state of a worker, with what servers owed: where no rank serves, each worker owes it."""
    for name, pull in pulls.items():
        if "residual" in pull:
            state = push.setdefault(name, {key: torch.zeros_like(x) for key, x in pull.items()})
            state["residual"] = _sum("residual", name, state["residual"], pull["residual"])
    return push


def check_buffer(key: str, buffer: object, name: str, numel: int | None) -> Tensor:
    """Refuse what cannot be a buffer of the gradient ``name``. ``numel`` None is any size."""
    if not isinstance(buffer, Tensor):
        raise ConfigError(f"{key} of {name!r} is a {type(buffer).__name__}, expected a tensor")
    if buffer.dim() == 0:  # a number beside the others
        return buffer
    if buffer.dtype != torch.float32:
        raise ConfigError(
            f"{key} of {name!r} is {buffer.dtype}, expected torch.float32: load it as it was saved"
        )
    if numel is not None and buffer.numel() != numel:
        raise ConfigError(
            f"{key} of {name!r} has {buffer.numel()} elements, but the parameter, or its piece, "
            f"has {numel}: is it of another network?"
        )
    return buffer


def place_of(piece_name: str) -> tuple[str, int, int | None]:
    """The parameter of a piece, where it begins and ends; None is the end of the parameter."""
    match = _PIECE_NAME.fullmatch(piece_name)
    if match is None:
        return piece_name, 0, None
    return match["name"], int(match["start"]), int(match["stop"])


def _add_to(target: State, key: str, buffer: Tensor, factor: float, name: str) -> None:
    if buffer.dim() == 0:  # a learning rate: the same for all
        target[key] = buffer.clone()
    elif key in target:
        target[key] = _sum(key, name, target[key], buffer * factor)
    else:
        target[key] = buffer * factor


def _sum(key: str, name: str, a: Tensor, b: Tensor) -> Tensor:
    if a.shape != b.shape:
        raise ConfigError(
            f"{key} of {name!r} has {a.numel()} elements on one rank and {b.numel()} on another: "
            "are all states of one run?"
        )
    return a + b


def _joined(name: str, parts: Sequence[State]) -> State:
    """The buffers of a parameter, from those of its pieces, in order."""
    keys = set(parts[0])
    if any(set(part) != keys for part in parts):
        raise ConfigError(f"the pieces of {name!r} hold different buffers, expected {sorted(keys)}")
    return {key: _join([part[key] for part in parts]) for key in parts[0]}


def _by_name(pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    groups: dict[str, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.key.name, []).append(piece)
    return groups


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if parts[0].dim() == 0 else torch.cat(list(parts))


def _cut(key: str, buffer: object, piece: Piece) -> Tensor:
    whole = check_buffer(key, buffer, piece.key.name, piece.key.numel)
    return whole if whole.dim() == 0 else whole.reshape(-1)[piece.start : piece.stop]
