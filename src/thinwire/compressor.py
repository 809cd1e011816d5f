"""Feedback around a codec, for many named tensors. Read this file first.

A gradient goes through ``feedback.before``, is encoded, decoded again to learn what the receiver
will see, and ``feedback.after`` remembers the difference. Where ``fused`` knows the pair of
feedback and codec, one native pass does all of that, with the same bits as result.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import _native
from thinwire.codec import registry
from thinwire.codec.arena import HEAP, Arena, encode
from thinwire.codec.base import Codec, Payload, finite, shares_seed
from thinwire.codec.dense import Float32, bytes_of
from thinwire.codec.policy import Chooser, as_policy
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, Moment, NoFeedback, State
from thinwire.fused import Change, FusedState, Fusion, find_fusion
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import Piece
from thinwire.settings import check_whole

LARGEST = 2.0**100
"""Gradients with a larger norm are treated as overflowed: millions of them still add up to
something finite, so that no peer can spoil a residual."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One compressed tensor, ready for a frame."""

    wire_id: int
    numel: int
    payload: Payload

    @property
    def nbytes(self) -> int:
        return len(self.payload)

    def decode(self, out: Tensor | None = None) -> Tensor:
        """What the receiver will see, as a flat float32 tensor; into ``out`` if it is given."""
        out = torch.empty(self.numel) if out is None else out
        registry.decode(self.wire_id, self.payload, out)
        return out


class Compressor:
    """Compress named gradients and remember what was left out.

    The same class is used on both ways of a gradient: by every worker before it sends, and by the
    server before it answers. That second use is what makes it DoubleSqueeze.

    ``chooser`` is a codec or a policy. ``seed`` and ``rank`` make random codecs repeatable: ranks
    draw different numbers, unless a codec needs all to draw the same. ``workers`` is the number of
    workers that gradients are averaged over. ``fuse=False`` takes the plain path throughout. With
    ``undo`` the newest step can be undone, at the price of twice the memory: steps then write their
    state beside the old one. That is also faster: an overflow need not be looked for beforehand.
    """

    def __init__(
        self,
        chooser: Chooser,
        feedback: Feedback,
        *,
        seed: int = 0,
        rank: int = 0,
        workers: int = 1,
        fuse: bool = True,
        undo: bool = False,
    ) -> None:
        check_whole(seed, least=0, owner="Compressor", field="seed")
        check_whole(rank, least=0, owner="Compressor", field="rank")
        check_whole(workers, least=1, owner="Compressor", field="workers")
        self._policy = as_policy(chooser)
        self._feedback = feedback
        self._seed = seed
        self._rank = rank
        self._workers = workers
        self._fuse = fuse
        self._undo = undo
        self._forgets = feedback == NoFeedback()
        self.squares: dict[str, float] = {}
        """The sum of squares of the newest gradient of each piece, where it was needed."""
        self._states: dict[str, FusedState] = {}
        self._saved: dict[str, FusedState] = {}
        self._saved_at: dict[str, int] = {}
        self._scratch = torch.empty(0)

    def compress(
        self,
        name: str,
        gradient: Tensor,
        *,
        step: int,
        gradient_norm: float | None = None,
        learning_rate: float | None = None,
    ) -> Encoded:
        """Encode ``gradient`` and what earlier steps left of it.

        A gradient with an inf, a nan or a norm above ``LARGEST`` travels as it is, in float32, and
        touches no state: mixed precision overflows on purpose now and then and skips the step.
        The peers must see that, but one inf in a residual would stay there for ever.
        """
        return self.compress_piece(
            Piece.whole(Key(name, tuple(gradient.shape))),
            flatten(gradient),
            step=step,
            gradient_norm=gradient_norm,
            learning_rate=learning_rate,
        )

    def compress_all(
        self,
        gradients: Mapping[str, Tensor],
        *,
        step: int,
        learning_rate: float | None = None,
    ) -> dict[str, Encoded]:
        """Encode all gradients of a step, knowing their common norm.

        If one is not finite, none touches any state.
        """
        flat = {name: flatten(gradient) for name, gradient in gradients.items()}
        squares = [_native.sum_squares(x) for x in flat.values()]
        if not all(is_usable(square) for square in squares):
            return {name: untouched(x, HEAP) for name, x in flat.items()}
        moment = Moment(step, self._workers, math.sqrt(math.fsum(squares)), learning_rate)
        pieces = {name: Piece.whole(Key(name, tuple(gradients[name].shape))) for name in flat}
        return {
            name: self._compress(pieces[name], x, moment, HEAP, checked=True)
            for name, x in flat.items()
        }

    def compress_piece(
        self,
        piece: Piece,
        flat: Tensor,
        *,
        step: int,
        gradient_norm: float | None = None,
        learning_rate: float | None = None,
        view: bool = False,
        arena: Arena = HEAP,
    ) -> Encoded:
        """Encode one piece of a gradient: a flat float32 CPU tensor of ``piece.numel`` elements.

        The policy is asked about the whole gradient; the state is the piece's own. With ``view``
        the payload may be the memory of ``flat`` itself: send it before that is changed. Else it is
        written into ``arena``, which needs room for ``max_nbytes``; a codec without
        ``encode_into`` allocates it.
        """
        moment = Moment(step, self._workers, gradient_norm, learning_rate)
        if view and self._forgets and self._choose(piece, moment) == Float32():
            return Encoded(Float32.wire_id, flat.numel(), bytes_of(flat))
        try:
            return self._compress(piece, flat, moment, arena)
        except _Overflowed:
            return untouched(flat, arena)

    def compress_sum(
        self,
        piece: Piece,
        pushes: Sequence[Encoded],
        *,
        weight: float,
        step: int,
        learning_rate: float | None = None,
        room: Tensor | None = None,
        arena: Arena = HEAP,
    ) -> Encoded:
        """Encode ``weight`` times the sum of ``pushes``, in their order: a server's answer.

        ``room`` is memory for the sum, which the payload may be a view of. Float32 pushes may be
        views of it. Any other payload is written into ``arena``, apart from the pushes.
        """
        moment = Moment(step, self._workers, None, learning_rate)
        codec = self._choose(piece, moment)
        fusion = self._fusion(codec)
        if fusion is not None and fusion.can_sum(push.wire_id for push in pushes):
            change = self._begin_change(piece, self._find_state(piece), moment)
            payloads = [push.payload for push in pushes]
            payload = arena.fill(
                codec.max_nbytes(piece.numel),
                lambda out: fusion.sum_step(payloads, weight, change, out, numel=piece.numel),
            )
            self._advance(piece, change)
            return Encoded(codec.wire_id, piece.numel, payload)
        mean = torch.empty(piece.numel) if room is None else room
        add_up(pushes, weight, mean)
        return self.compress_piece(
            piece, mean, step=step, learning_rate=learning_rate, view=True, arena=arena
        )

    def prepare(self, pieces: Iterable[Piece]) -> None:
        """Make the state of these pieces now: a checkpoint is loaded into what is there."""
        for piece in pieces:
            self._find_state(piece)

    def forget(self, piece: Piece) -> None:
        """Owe nothing for this piece any more."""
        self._states.pop(piece.name, None)

    def take_back(self, piece: Piece, sent: Encoded) -> None:
        """Owe again what was sent but not accepted."""
        state = self._find_state(piece)
        if "residual" not in state.buffers:
            raise ConfigError(
                f"{piece.name}: a push was refused, but this feedback cannot keep it: use Residual"
            )
        registry.add(sent.wire_id, sent.payload, state.settle()["residual"], weight=1.0)

    def undo_step(self, step: int) -> None:
        """Make the state what it was before ``step``, the newest one: its update is not applied."""
        for name, saved_at in self._saved_at.items():
            if saved_at == step:
                saved, self._saved[name] = self._saved[name], self._states[name]
                self._states[name] = saved
        self._saved_at.clear()

    def owed_squares(self) -> dict[str, float]:
        """The sum of squares of every residual, by piece."""
        return {
            name: _native.sum_squares(state.settle()["residual"])
            for name, state in self._states.items()
            if "residual" in state.buffers
        }

    def max_nbytes(self, piece: Piece, *, step: int) -> int:
        """The largest payload that this piece may have at this step, overflowed or not."""
        codec = self._policy.choose(piece.key, step=step, workers=self._workers)
        return max(codec.max_nbytes(piece.numel), Float32().max_nbytes(piece.numel))

    def is_dense(self, piece: Piece, *, step: int) -> bool:
        """Whether this piece travels in float32 at this step, overflowed or not."""
        codec = self._policy.choose(piece.key, step=step, workers=self._workers)
        return codec.wire_id == Float32.wire_id

    def state_dict(self) -> dict[str, State]:
        """A copy of all buffers, in plain tensors: ``{name: {"residual": tensor, ...}}``."""
        return {
            name: {key: buffer.clone() for key, buffer in state.settle().items()}
            for name, state in self._states.items()
        }

    def load_state_dict(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over a copy of ``states``. Refuses buffers that this feedback does not keep."""
        self._states = {name: self._loaded(name, state) for name, state in states.items()}
        self._saved, self._saved_at = {}, {}

    def _compress(
        self, piece: Piece, flat: Tensor, moment: Moment, arena: Arena, *, checked: bool = False
    ) -> Encoded:
        codec, state = self._choose(piece, moment), self._find_state(piece)
        fusion = self._fusion(codec)
        if fusion is None:
            if not checked:
                self._note_squares(piece, _native.sum_squares(flat))
            self._save(piece, state, moment.step)
            payload = self._unfused(codec, piece, flat, state.settle(), moment, arena)
            return Encoded(codec.wire_id, flat.numel(), payload)
        change = self._begin_change(piece, state, moment)
        if change.after is state and not checked:  # which an overflow would spoil
            self._note_squares(piece, _native.sum_squares(flat))

        def write(out: memoryview) -> int:
            nbytes, squares = fusion.step(flat, change, out)
            self._note_squares(piece, squares)
            return finite(nbytes, codec.name)

        payload = arena.fill(codec.max_nbytes(flat.numel()), write)
        self._advance(piece, change)
        return Encoded(codec.wire_id, flat.numel(), payload)

    def _note_squares(self, piece: Piece, squares: float) -> None:
        self.squares[piece.name] = squares
        if not is_usable(squares):
            raise _Overflowed

    def _unfused(
        self,
        codec: Codec,
        piece: Piece,
        flat: Tensor,
        state: State,
        moment: Moment,
        arena: Arena,
    ) -> Payload:
        wanted = self._feedback.before(flat, state, moment)
        payload = encode(codec, wanted, arena, seed=self._seed_for(codec, piece, moment))
        if not self._forgets:
            sent = self._room_for(wanted.numel())
            codec.decode(payload, sent)
            self._feedback.after(sent, state, sparse=codec.sparse)
        return payload

    def _room_for(self, numel: int) -> Tensor:
        """Memory for what was sent, used again for every piece."""
        if self._scratch.numel() < numel:
            self._scratch = torch.empty(numel)
        return self._scratch[:numel]

    def _choose(self, piece: Piece, moment: Moment) -> Codec:
        return self._policy.choose(piece.key, step=moment.step, workers=moment.workers)

    def _fusion(self, codec: Codec) -> Fusion | None:
        return find_fusion(codec, self._feedback) if self._fuse else None

    def _saves(self, piece: Piece, step: int) -> bool:
        """Whether the state of this piece must be kept as it was before this step."""
        return self._undo and self._saved_at.get(piece.name) != step

    def _save(self, piece: Piece, state: FusedState, step: int) -> None:
        """Keep a copy of the state, which is about to be changed."""
        if self._saves(piece, step):
            self._saved[piece.name] = state.save_into(self._saved.get(piece.name))
            self._saved_at[piece.name] = step

    def _begin_change(self, piece: Piece, state: FusedState, moment: Moment) -> Change:
        """Let a fused step write the state beside the old one if that must be kept."""
        if not self._saves(piece, moment.step):
            return Change(state, state, moment)
        return Change(state, state.successor(self._saved.get(piece.name)), moment)

    def _advance(self, piece: Piece, change: Change) -> None:
        if change.after is not change.state:
            self._saved[piece.name], self._saved_at[piece.name] = change.state, change.moment.step
            self._states[piece.name] = change.after

    def _find_state(self, piece: Piece) -> FusedState:
        state = self._states.get(piece.name)
        if state is None:
            state = self._states[piece.name] = FusedState(self._feedback.init(piece.numel))
            state.prefer_huge_pages()
        check_numel(piece, state)
        return state

    def _seed_for(self, codec: Codec, piece: Piece, moment: Moment) -> int:
        """A seed of its own for every tensor, step and, unless the codec shares it, rank."""
        rank = 0 if shares_seed(codec) else self._rank
        text = f"{self._seed}/{rank}/{moment.step}/{piece.name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def _loaded(self, name: str, state: Mapping[str, Tensor]) -> FusedState:
        expected = set(self._feedback.init(0))
        if set(state) != expected:
            raise ConfigError(
                f"state of {name!r} holds {sorted(state)}, "
                f"but this feedback keeps {sorted(expected)}"
            )
        return FusedState({key: buffer.detach().clone() for key, buffer in state.items()})


class _Overflowed(Exception):
    """The gradient is not finite, or too large: the step must not have happened."""


def add_up(pushes: Sequence[Encoded], weight: float, out: Tensor) -> None:
    """Do ``out = weight * (sum of pushes)``, in their order. float32 ones may be views of it."""
    dense = [push.wire_id == Float32.wire_id for push in pushes]
    if all(dense):
        Float32.sum([push.payload for push in pushes], out, weight=weight)
        return
    total = torch.zeros_like(out) if any(dense) else out.zero_()
    for push in pushes:
        registry.add(push.wire_id, push.payload, total, weight=weight)
    if total is not out:
        out.copy_(total)


def is_usable(square: float) -> bool:
    """Whether feedback may see values with this sum of squares: finite, and far from overflow."""
    return square <= LARGEST**2  # false for a nan


def untouched(flat: Tensor, arena: Arena) -> Encoded:
    """The values as they are, but for those too large to use, which become the inf they stand for.

    So whoever receives it sees an overflow wherever the sender saw one.
    """
    too_large = flat.abs() > LARGEST
    if too_large.any():
        flat = torch.where(too_large, torch.copysign(torch.tensor(math.inf), flat), flat)
    return Encoded(Float32.wire_id, flat.numel(), encode(Float32(), flat, arena, seed=0))


def check_numel(piece: Piece, state: FusedState) -> None:
    for name, buffer in state.buffers.items():
        if buffer.dim() == 1 and buffer.numel() != piece.numel:
            raise ConfigError(
                f"{name} of {piece.name!r} has {buffer.numel()} elements, "
                f"but its gradient has {piece.numel}"
            )


def flatten(gradient: Tensor) -> Tensor:
    """The gradient as a flat float32 CPU tensor: a view where it is one already."""
    if gradient.layout is not torch.strided or not gradient.dtype.is_floating_point:
        raise ConfigError(
            f"gradients must be dense and real, got {gradient.dtype} with layout {gradient.layout}"
        )
    return gradient.detach().to("cpu", torch.float32).reshape(-1).contiguous()
