"""Feedback around a codec, for many named tensors. Read this file first.

A gradient goes through ``feedback.before``, is encoded, decoded again to learn what the receiver
will see, and ``feedback.after`` remembers the difference. Where ``fused`` knows the pair of
feedback and codec, one native pass does all of that, with the same bits as result.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from thinwire import _native
from thinwire.codec import registry
from thinwire.codec.arena import HEAP, Arena, encode
from thinwire.codec.base import Codec, Payload, finite, shares_seed
from thinwire.codec.dense import Float32, bytes_of
from thinwire.codec.policy import Chooser, as_policy
from thinwire.encoded import Encoded, add_up
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, Moment, NoFeedback, State, is_usable
from thinwire.fused import Fusion, find_fusion
from thinwire.gradient.flat import flatten
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import Piece
from thinwire.overflow import Overflowed, untouched
from thinwire.settings import check_whole
from thinwire.states import States

LAST_STEP = 1 << 62
"""Where every schedule is over."""


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
        self._newest_fusion: tuple[Codec | None, Fusion | None] = None, None
        self._forgets = feedback == NoFeedback()
        self.squares: dict[str, float] = {}
        """The sum of squares of the newest gradient of each piece, where it was needed."""
        self._states = States(feedback, undo=undo)
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
        squares = {name: _native.sum_squares(x) for name, x in flat.items()}
        if not all(is_usable(square) for square in squares.values()):
            return {name: untouched(x, HEAP) for name, x in flat.items()}
        norm = math.sqrt(math.fsum(squares.values()))
        moment = Moment(step, self._workers, norm, learning_rate)
        pieces = {name: Piece.whole(Key(name, tuple(gradients[name].shape))) for name in flat}
        return {
            name: self._compress(
                self._choose(piece, moment), piece, flat[name], moment, HEAP, squares=squares[name]
            )
            for name, piece in pieces.items()
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
        """
        moment = Moment(step, self._workers, gradient_norm, learning_rate)
        codec = self._choose(piece, moment)
        if view and self._forgets and codec == Float32():
            return Encoded(Float32.wire_id, flat.numel(), bytes_of(flat))
        clear = clear and codec.sparse
        try:
            return self._compress(codec, piece, flat, moment, arena, clear=clear)
        except Overflowed:
            return untouched(flat.fill_(math.nan) if clear else flat, arena)

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
            with suppress(Overflowed):  # which the plain path passes on
                return self._sum_fused(codec, fusion, piece, pushes, weight, moment, arena)
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
        """Owe nothing for this piece any more."""
        self._states.forget(piece)

    def take_back(self, piece: Piece, sent: Encoded) -> None:
        """Owe again what was sent but not accepted."""
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

    def max_nbytes(self, piece: Piece, *, step: int) -> int:
        """The largest payload that this piece may have at this step, overflowed or not."""
        codec = self._policy.choose(piece.key, step=step, workers=self._workers)
        return max(codec.max_nbytes(piece.numel), Float32().max_nbytes(piece.numel))

    def usual_nbytes(self, piece: Piece) -> int:
        """About what the payload of this piece has, once all schedules are over."""
        codec = self._policy.choose(piece.key, step=LAST_STEP, workers=self._workers)
        return codec.max_nbytes(piece.numel)

    def is_dense(self, piece: Piece, *, step: int) -> bool:
        """Whether this piece travels in float32 at this step, overflowed or not."""
        codec = self._policy.choose(piece.key, step=step, workers=self._workers)
        return codec.wire_id == Float32.wire_id

    def state_dict(self) -> dict[str, State]:
        """A copy of all buffers, in plain tensors: ``{name: {"residual": tensor, ...}}``."""
        return {
            name: {key: buffer.clone() for key, buffer in state.items()}
            for name, state in self._states.settled()
        }

    def load_state_dict(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over a copy of ``states``. Refuses buffers that this feedback does not keep."""
        self._states.load(states)

    def _compress(
        self,
        codec: Codec,
        piece: Piece,
        flat: Tensor,
        moment: Moment,
        arena: Arena,
        *,
        squares: float | None = None,
        clear: bool = False,
    ) -> Encoded:
        """``squares`` is the sum of them, if it is known and usable."""
        fusion = self._fusion(codec)
        if fusion is None:
            if squares is None:
                squares = _native.sum_squares(flat)
            self._note_squares(piece, squares)
            self._states.save(piece, moment.step)
            payload = self._unfused(codec, piece, flat, moment, arena)
        else:
            payload = self._fused(codec, fusion, piece, flat, moment, arena, squares, clear)
        if clear and not (fusion and fusion.clears):
            flat.zero_()
        return Encoded(codec.wire_id, flat.numel(), payload)

    def _fused(
        self,
        codec: Codec,
        fusion: Fusion,
        piece: Piece,
        flat: Tensor,
        moment: Moment,
        arena: Arena,
        squares: float | None,
        clear: bool,
    ) -> Payload:
        change = self._states.begin(piece, moment)
        if change.after is change.state and squares is None:  # which an overflow would spoil
            squares = _native.sum_squares(flat)
        if squares is not None:
            self._note_squares(piece, squares)

        def write(out: memoryview) -> int:
            nbytes, found = fusion.step(flat, change, out, clear=clear)
            if squares is None:
                self._note_squares(piece, found)
            return finite(nbytes, codec.name)

        payload = arena.fill(codec.max_nbytes(flat.numel()), write)
        self._states.finish(piece, change)
        return payload

    def _sum_fused(
        self,
        codec: Codec,
        fusion: Fusion,
        piece: Piece,
        pushes: Sequence[Encoded],
        weight: float,
        moment: Moment,
        arena: Arena,
    ) -> Encoded:
        if fusion.sums_in_place:
            change = self._states.begin_in_place(piece, moment)
        else:
            change = self._states.begin(piece, moment)
        payloads = [push.payload for push in pushes]

        def write(out: memoryview) -> int:
            nbytes = fusion.sum_step(payloads, weight, change, out, numel=piece.numel)
            if nbytes is None:
                raise Overflowed
            return nbytes

        payload = arena.fill(codec.max_nbytes(piece.numel), write)
        self._states.finish(piece, change)
        return Encoded(codec.wire_id, piece.numel, payload)

    def _note_squares(self, piece: Piece, squares: float) -> None:
        self.squares[piece.name] = squares
        if not is_usable(squares):
            raise Overflowed

    def _unfused(
        self, codec: Codec, piece: Piece, flat: Tensor, moment: Moment, arena: Arena
    ) -> Payload:
        state = self._states.find(piece).settle()
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
        # Most tensors have the same codec, and to look takes longer than to compress a small one.
        newest = self._newest_fusion
        if newest[0] is not codec:
            fusion = find_fusion(codec, self._feedback) if self._fuse else None
            newest = self._newest_fusion = codec, fusion
        return newest[1]

    def _seed_for(self, codec: Codec, piece: Piece, moment: Moment) -> int:
        """A seed of its own for every tensor, step and, unless the codec shares it, rank."""
        rank = 0 if shares_seed(codec) else self._rank
        text = f"{self._seed}/{rank}/{moment.step}/{piece.name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
