"""Feedback's state of every piece, and what it was before the newest step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from thinwire import _native
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, Moment, State
from thinwire.fused import Change
from thinwire.fused_state import FusedState
from thinwire.gradient import pages
from thinwire.gradient.pieces import Piece


class States:
    """By the names of pieces; made when a piece is first seen.

    With ``undo`` the newest step can be undone. A fused step then writes the state beside the old
    one, or if it changes little of it, keeps a log of that; any other step changes it in place, so
    that a copy is saved before.
    """

    def __init__(self, feedback: Feedback, *, undo: bool) -> None:
        self._feedback = feedback
        self._undo = undo
        self._states: dict[str, FusedState] = {}
        self._saved: dict[str, FusedState] = {}
        self._saved_at: dict[str, int] = {}
        self._logs: dict[str, _native.UndoLog] = {}
        self._logged_at: dict[str, int] = {}

    def find(self, piece: Piece) -> FusedState:
        state = self._states.get(piece.name)
        if state is None:
            state = self._states[piece.name] = _in_huge_pages(self._feedback.init(piece.numel))
        _check_numel(piece, state)
        return state

    def forget(self, piece: Piece) -> None:
        self._states.pop(piece.name, None)

    def settled(self) -> Iterator[tuple[str, State]]:
        """The buffers of every piece, as they would be without fusion."""
        return ((name, state.settle()) for name, state in self._states.items())

    def load(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over a copy. Refuses buffers that this feedback does not keep."""
        self._states = {name: self._loaded(name, state) for name, state in states.items()}
        self._saved, self._saved_at, self._logs, self._logged_at = {}, {}, {}, {}

    def _loaded(self, name: str, state: Mapping[str, Tensor]) -> FusedState:
        expected = set(self._feedback.init(0))
        if set(state) != expected:
            raise ConfigError(
                f"state of {name!r} holds {sorted(state)}, "
                f"but this feedback keeps {sorted(expected)}"
            )
        return _in_huge_pages({key: buffer.detach().clone() for key, buffer in state.items()})

    def save(self, piece: Piece, step: int) -> None:
        """Keep a copy of the state, which is about to be changed in place."""
        if self._saves(piece, step):
            old = self._saved.get(piece.name)
            self._saved[piece.name] = self.find(piece).save_into(old)
            self._saved_at[piece.name] = step

    def begin(self, piece: Piece, moment: Moment) -> Change:
        """What a fused step has to write, beside the old state if that must be kept."""
        state = self.find(piece)
        if not self._saves(piece, moment.step):
            return Change(state, state, moment)
        return Change(state, state.successor(self._saved.get(piece.name)), moment)

    def begin_in_place(self, piece: Piece, moment: Moment) -> Change:
        """What a fused step has to change, which logs what it overwrites."""
        state = self.find(piece)
        if not self._undo:
            return Change(state, state, moment)
        log = self._logs.setdefault(piece.name, _native.UndoLog())
        if self._logged_at.get(piece.name) != moment.step:
            log.clear()
            self._logged_at[piece.name] = moment.step
        return Change(state, state, moment, log)

    def finish(self, piece: Piece, change: Change) -> None:
        """The step has happened: what it wrote is the state now."""
        if change.after is not change.state:
            self._saved[piece.name], self._saved_at[piece.name] = change.state, change.moment.step
            self._states[piece.name] = change.after

    def undo_step(self, step: int) -> None:
        """Make the state what it was before ``step``, if that is the newest one."""
        for name, saved_at in self._saved_at.items():
            if saved_at == step:
                saved, self._saved[name] = self._saved[name], self._states[name]
                self._states[name] = saved
        for name, logged_at in self._logged_at.items():
            if logged_at == step:
                self._logs[name].undo(self._states[name].settle()["residual"])
        self._saved_at.clear()
        self._logged_at.clear()

    def _saves(self, piece: Piece, step: int) -> bool:
        """Whether the state of this piece must be kept as it was before this step."""
        return self._undo and self._saved_at.get(piece.name) != step


def _in_huge_pages(buffers: State) -> FusedState:
    moved = {name: pages.moved(b) if b.dim() == 1 else b for name, b in buffers.items()}
    return FusedState(moved)


def _check_numel(piece: Piece, state: FusedState) -> None:
    for name, buffer in state.buffers.items():
        if buffer.dim() == 1 and buffer.numel() != piece.numel:
            raise ConfigError(
                f"{name} of {piece.name!r} has {buffer.numel()} elements, "
                f"but its gradient has {piece.numel}"
            )
