"""Compressor state by parameter, whatever the pieces, and for another number of workers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
            own = [states[piece.name] for piece in parts]
            joined[name] = {key: _join([state[key] for state in own]) for key in own[0]}
    return joined


def by_piece(pieces: Sequence[Piece], states: Mapping[str, Mapping[str, Tensor]]) -> States:
    """Cut the states of parameters. Refuses names that are none, and sizes that do not fit."""
    groups = _by_name(pieces)
    unknown = sorted(set(states) - set(groups))
    if unknown:
        raise ConfigError(
            f"state of {', '.join(unknown)}, but no parameter that is trained has that name: is it "
            "frozen now?"
        )
    return {
        piece.name: {key: _cut(key, buffer, piece) for key, buffer in states[name].items()}
        for name, parts in groups.items()
        if name in states
        for piece in parts
    }


def join_pieces(states: Sequence[States]) -> States:
    """The states of pieces that several owners hold, by parameter, whatever the pieces were."""
    parts: dict[str, dict[int, State]] = {}
    for owned in states:
        for piece_name, state in owned.items():
            found = _PIECE_NAME.fullmatch(piece_name)
            name, start = (found["name"], int(found["start"])) if found else (piece_name, 0)
            parts.setdefault(name, {})[start] = state
    return {
        name: {key: _join([own[start][key] for start in sorted(own)]) for key in own[min(own)]}
        for name, own in parts.items()
    }


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
                _add_to(target, key, buffer, factor)
    return fresh


def owe_also(own: States, pulls: Mapping[str, Mapping[str, Tensor]]) -> States:
    """The state of a worker, with what servers owed: where nobody serves, each worker owes it."""
    for name, pull in pulls.items():
        if "residual" in pull:
            state = own.setdefault(name, {key: torch.zeros_like(x) for key, x in pull.items()})
            state["residual"] = state["residual"] + pull["residual"]
    return own


def _add_to(target: State, key: str, buffer: Tensor, factor: float) -> None:
    if buffer.dim() == 0:  # a learning rate: the same for all
        target[key] = buffer.clone()
    elif key in target:
        target[key] += buffer * factor
    else:
        target[key] = buffer * factor


def _by_name(pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    groups: dict[str, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.key.name, []).append(piece)
    return groups


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if parts[0].dim() == 0 else torch.cat(list(parts))


def _cut(key: str, buffer: Tensor, piece: Piece) -> Tensor:
    if buffer.dim() == 0:
        return buffer
    if buffer.numel() != piece.key.numel:
        raise ConfigError(
            f"{key} of {piece.key.name!r} has {buffer.numel()} elements, "
            f"but the parameter has {piece.key.numel}"
        )
    return buffer.reshape(-1)[piece.start : piece.stop]
