"""``Compressor``: error feedback around a codec, for many named tensors. Read this file first.

A gradient goes through ``feedback.before``, is encoded, decoded again to learn what the receiver
will see, and ``feedback.after`` keeps the difference as the residual. So over time nothing is lost:
all gradients together are all that was sent plus the residual. ``passes`` has these steps; where
``fused`` knows the pair of feedback and codec, one native pass does them, with the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from thinwire import _native
from thinwire.checks import check_whole
from thinwire.codec import registry
from thinwire.codec.arena import HEAP, Arena
from thinwire.codec.base import Codec
from thinwire.codec.dense import Float32, bytes_of
from thinwire.codec.policy import Chooser, as_policy
from thinwire.compressor.encoded import Encoded, Overflowed, add_up, untouched
from thinwire.compressor.passes import Passes
from thinwire.compressor.state import States
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, NoFeedback, State, is_usable, stages_of
from thinwire.feedback.clip import Clip
from thinwire.feedback.momentum import AdamMomentum, shared_momentum
from thinwire.gradient.pieces import Key, Piece, flatten
from thinwire.gradient.steps import Carried, StepInfo
from thinwire.wire.body import EncodedBytes

LAST_STEP = 1 << 62
"""Where every schedule is over."""


class Compressor:
    """Compress named gradients and remember what was left out.

    The same class is used on both ways of a gradient: by every worker before it sends, and by the
    server before it answers. That second use is what makes it DoubleSqueeze.

    ``chooser`` is a codec or a policy. ``seed`` and ``rank`` make random codecs repeatable: ranks
    draw different numbers, unless a codec needs all to draw the same. ``workers`` is the number of
    workers that gradients are averaged over. ``fuse=False`` takes the plain pass throughout. With
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
        self._shared = shared_momentum(feedback)
        self._workers = workers
        self._states = States(feedback, undo=undo)
        self._passes = Passes(feedback, self._states, seed=seed, rank=rank, fuse=fuse)
        # Gradients that are sent in full are still clipped, but nothing of them is kept.
        clip = [stage for stage in stages_of(feedback) if isinstance(stage, Clip)]
        full = clip[0] if clip else NoFeedback()
        self._full = Passes(full, States(full, undo=False), seed=seed, rank=rank, fuse=fuse)
        self._full.squares = self._passes.squares
        self.squares = self._passes.squares
        """The sum of squares of the newest gradient of each piece, where it was needed."""

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
        squares = {name: _native.sum_squares(x) for name, x in flat.items()}
        if not all(is_usable(square) for square in squares.values()):
            return {name: untouched(x, HEAP) for name, x in flat.items()}
        norm = math.sqrt(math.fsum(squares.values()))
        info = StepInfo(step, learning_rate, norm, self._workers)
        pieces = {name: Piece.whole(Key(name, tuple(gradients[name].shape))) for name in flat}
        encoded = {}
        for name, piece in pieces.items():
            codec, passes = self._choose(piece, step)
            encoded[name] = passes.encode(
                codec, piece, flat[name], info, HEAP, squares=squares[name]
            )
        return encoded

    def compress_piece(
        self,
        piece: Piece,
        flat: Tensor,
        *,
        step: int,
        gradient_norm: float | None = None,
        learning_rate: float | None = None,
        carried: Carried | None = None,
        view: bool = False,
        clear: bool = False,
        arena: Arena = HEAP,
    ) -> Encoded:
        """Encode one piece of a gradient: a flat float32 CPU tensor of ``piece.numel`` elements.

        The policy is asked about the whole gradient; the state is the piece's own. With ``view``
        the payload may be the memory of ``flat`` itself: send it before that is changed. Else it is
        written into ``arena``, which needs room for ``max_nbytes``; a codec without
        ``encode_into`` allocates it.

        With ``clear``, ``flat`` is zeros afterwards if the payload is of a sparse codec: they are
        written while it is in the caches. What overflows may be gone by then, and travels as nan.

        ``carried`` is the optimizer's momentum, for a feedback that shares it; a step that sends
        gradients in full does not use it.
        """
        codec, passes = self._choose(piece, step)
        info = StepInfo(step, learning_rate, gradient_norm, self._workers, carried=carried)
        if view and passes.forgets and codec == Float32():
            return Encoded(Float32.wire_id, flat.numel(), bytes_of(flat))
        clear = clear and codec.sparse
        try:
            return passes.encode(codec, piece, flat, info, arena, clear=clear)
        except Overflowed:
            return untouched(flat.fill_(math.nan) if clear else flat, arena)

    def compress_sum(
        self,
        piece: Piece,
        pushes: Sequence[EncodedBytes],
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
        info = StepInfo(step, learning_rate, workers=self._workers)
        codec, passes = self._choose(piece, step)
        fused = passes.encode_sum(codec, piece, pushes, weight, info, arena)
        if fused is not None:
            return fused
        mean = torch.empty(piece.numel) if room is None else room
        add_up(pushes, weight, mean)
        return self.compress_piece(
            piece, mean, step=step, learning_rate=learning_rate, view=True, arena=arena
        )

    def prepare(self, pieces: Iterable[Piece]) -> None:
        """Make the state of these pieces now: a checkpoint is loaded into what is there."""
        for piece in pieces:
            self._states.find(piece)

    def forget(self, piece: Piece) -> None:
        """Drop the residual of this piece, and all else that is kept for it."""
        self._states.forget(piece)

    def take_back(self, piece: Piece, sent: EncodedBytes) -> None:
        """Add what was sent but not accepted to the residual again."""
        state = self._states.find(piece)
        if "residual" not in state.buffers:
            raise ConfigError(
                f"{piece.name}: a push was refused, but this feedback cannot keep it: use Residual"
            )
        registry.add(sent.wire_id, sent.payload, state.settle()["residual"], weight=1.0)

    def undo_step(self, step: int) -> None:
        """Make the state what it was before ``step``, the newest one: its update is not applied."""
        self._states.undo_step(step)

    def owed_squares(self) -> dict[str, float]:
        """The sum of squares of every residual, by piece."""
        return {
            name: _native.sum_squares(state["residual"])
            for name, state in self._states.settled()
            if "residual" in state
        }

    @property
    def forgotten_ratio(self) -> float | None:
        """The norm of what decaying residuals forgot over that of gradients, as root mean squares
        over all steps so far; None where nothing is forgotten."""
        passes = self._passes
        if passes.decay == 1.0 or not passes.given_squares:
            return None
        return math.sqrt(passes.forgotten_squares / passes.given_squares)

    def max_nbytes(self, piece: Piece, *, step: int) -> int:
        """The largest payload that this piece may have at this step, overflowed or not."""
        codec, _ = self._choose(piece, step)
        return max(codec.max_nbytes(piece.numel), Float32().max_nbytes(piece.numel))

    def usual_nbytes(self, piece: Piece) -> int:
        """About what the payload of this piece has, once all schedules are over."""
        # Of two steps in a row at most one is a full one, unless all are.
        codecs = [self._choose(piece, step)[0] for step in (LAST_STEP, LAST_STEP + 1)]
        return min(codec.max_nbytes(piece.numel) for codec in codecs)

    def is_dense(self, piece: Piece, *, step: int) -> bool:
        """Whether this piece travels in float32 at this step, overflowed or not."""
        return self._choose(piece, step)[0].wire_id == Float32.wire_id

    def state_dict(self) -> dict[str, State]:
        """A copy of all buffers, in plain tensors: ``{name: {"residual": tensor, ...}}``."""
        return {
            name: {key: buffer.clone() for key, buffer in state.items()}
            for name, state in self._states.settled()
        }

    def load_state_dict(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over a copy of ``states``. Refuses buffers that this feedback does not keep."""
        self._states.load(states)

    def check_state_dict(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Refuse what ``load_state_dict`` would."""
        self._states.check(states)

    def _full_codec(self, piece: Piece, step: int) -> Codec | None:
        """The codec of a gradient that is sent in full, where other steps send momentum."""
        shared = self._shared
        if not isinstance(shared, AdamMomentum) or shared.travels(piece.key, step=step):
            return None
        return registry.make_codec(shared.full)

    def _choose(self, piece: Piece, step: int) -> tuple[Codec, Passes]:
        full = self._full_codec(piece, step)
        if full is not None:
            return full, self._full
        return self._policy.choose(piece.key, step=step, workers=self._workers), self._passes
