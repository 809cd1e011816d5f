"""``States``: the feedback buffers of every piece, and what they were before the newest step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from thinwire import _native
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, State
from thinwire.gradient import pages
from thinwire.gradient.pieces import Piece
from thinwire.gradient.steps import StepInfo


@dataclass(slots=True)
class FusedState:
    """A tensor's buffers, of which the residual may be lazy.

    Between two 1-bit steps the residual buffer holds what was *wanted* and ``scales`` what was
    sent for it. Together they are the residual, and the next pass forms it while reading: one pass
    over memory instead of two.
    """

    buffers: State
    scales: Tensor | None = None
    block: int = field(default=0)

    def settle(self) -> State:
        """The buffers as feedback knows them."""
        if self.scales is not None:
            _native.onebit_settle(self.buffers["residual"], self.scales, self.block)
            self.scales = None
        return self.buffers

    def successor(self, spare: FusedState | None) -> FusedState:
        """Room for what a step makes of this state, in the memory of ``spare`` if there is one.

        Buffers are written whole by the step; single numbers are what they are here.
        """
        if spare is None:
            spare = FusedState({name: _room_like(buffer) for name, buffer in self.buffers.items()})
        for name, buffer in self.buffers.items():
            if buffer.dim() == 0:
                spare.buffers[name].copy_(buffer)
        return spare

    def save_into(self, saved: FusedState | None) -> FusedState:
        """A copy of this state, in the memory of an older copy if there is one."""
        if saved is None:
            buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
            saved = FusedState(buffers)
        else:
            for name, buffer in self.buffers.items():
                saved.buffers[name].copy_(buffer)
        saved.scales, saved.block = self._copied_scales(saved.scales), self.block
        return saved

    def _copied_scales(self, older: Tensor | None) -> Tensor | None:
        """A copy of the scales, in the memory of an older copy if that has the size."""
        if self.scales is None:
            return None
        if older is None or older.numel() != self.scales.numel():
            return self.scales.clone()
        return older.copy_(self.scales)

    def lazy_scales(self, block: int) -> Tensor:
        """The scales of the lazy residual; zeros, which mean nothing was sent, if it is settled."""
        if self.scales is None or self.block != block:
            self.settle()
            count = _native.onebit_scales(self.buffers["residual"].numel(), block)
            self.scales, self.block = torch.zeros(count), block
        return self.scales

    def room_for_scales(self, like: FusedState) -> Tensor:
        """Where new scales are written, as many as ``like`` has."""
        if self.scales is None or like.scales is None or self.scales.shape != like.scales.shape:
            self.scales = torch.empty_like(like.lazy_scales(like.block))
        self.block = like.block
        return self.scales


@dataclass(frozen=True, slots=True)
class Change:
    """What a step does to a tensor's state: ``state`` becomes ``after``, which may be itself.

    ``log`` is for what a step overwrites that changes little, if it must be possible to undo it.
    """

    state: FusedState
    after: FusedState
    info: StepInfo
    log: _native.UndoLog | None = None


class States:
    """A state for each piece, by its name, made when the piece is first seen.

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
        self.check(states)
        self._states = {name: _copied(state) for name, state in states.items()}
        self._saved, self._saved_at, self._logs, self._logged_at = {}, {}, {}, {}

    def check(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Refuse what ``load`` would."""
        expected = self._feedback.init(0)
        for name, state in states.items():
            if set(state) != set(expected):
                raise ConfigError(
                    f"state of {name!r} holds {sorted(state)}, "
                    f"but this feedback keeps {sorted(expected)}"
                )
            for key, buffer in state.items():
                _check_format(f"{key} of {name!r}", buffer, expected[key])

    def save(self, piece: Piece, step: int) -> None:
        """Keep a copy of the state, which is about to be changed in place."""
        if self._saves(piece, step):
            old = self._saved.get(piece.name)
            self._saved[piece.name] = self.find(piece).save_into(old)
            self._saved_at[piece.name] = step

    def begin(self, piece: Piece, info: StepInfo) -> Change:
        """What a fused step has to write, beside the old state if that must be kept."""
        state = self.find(piece)
        if not self._saves(piece, info.step):
            return Change(state, state, info)
        return Change(state, state.successor(self._saved.get(piece.name)), info)

    def begin_in_place(self, piece: Piece, info: StepInfo) -> Change:
        """What a fused step has to change, which logs what it overwrites."""
        state = self.find(piece)
        if not self._undo:
            return Change(state, state, info)
        log = self._logs.setdefault(piece.name, _native.UndoLog())
        if self._logged_at.get(piece.name) != info.step:
            log.clear()
            self._logged_at[piece.name] = info.step
        return Change(state, state, info, log)

    def finish(self, piece: Piece, change: Change) -> None:
        """The step has happened: what it wrote is the state now."""
        if change.after is not change.state:
            self._saved[piece.name], self._saved_at[piece.name] = change.state, change.info.step
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


def _copied(state: Mapping[str, Tensor]) -> FusedState:
    return _in_huge_pages({key: buffer.detach().clone() for key, buffer in state.items()})


def _check_format(what: str, buffer: Tensor, expected: Tensor) -> None:
    if (buffer.dtype, buffer.dim()) != (expected.dtype, expected.dim()):
        raise ConfigError(
            f"{what} is {buffer.dtype} with {buffer.dim()} dimensions, expected {expected.dtype} "
            f"with {expected.dim()}"
        )


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


def _room_like(buffer: Tensor) -> Tensor:
    return pages.empty(buffer.numel()) if buffer.dim() == 1 else torch.empty_like(buffer)
