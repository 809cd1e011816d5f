"""``Passes``: one step of error feedback on a piece, fused into a native pass or the plain one.

Both keep the law of error feedback: what was wanted is what is sent plus the new residual. What a
residual with a decay forgets before that is counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire import _native
from thinwire.codec.arena import Arena, encode
from thinwire.codec.base import Codec, Payload, finite, shares_seed
from thinwire.compressor.encoded import Encoded, Overflowed
from thinwire.compressor.fused import Fusion, find_fusion
from thinwire.compressor.state import States
from thinwire.feedback.base import Feedback, NoFeedback, is_usable
from thinwire.feedback.residual import decay_of
from thinwire.gradient.pieces import Piece
from thinwire.gradient.steps import StepInfo
from thinwire.wire.body import EncodedBytes


class Passes:
    """Encodes pieces and changes their ``states``. An overflow raises, and changes nothing."""

    def __init__(
        self, feedback: Feedback, states: States, *, seed: int, rank: int, fuse: bool
    ) -> None:
        self._feedback, self._states = feedback, states
        self._seed, self._rank = seed, rank
        self._fuse = fuse
        self._newest_fusion: tuple[Codec | None, Fusion | None] = None, None
        self._scratch = torch.empty(0)
        self.forgets = feedback == NoFeedback()
        self.squares: dict[str, float] = {}
        self.decay = decay_of(feedback)
        self.given_squares = self.forgotten_squares = 0.0

    def encode(
        self,
        codec: Codec,
        piece: Piece,
        flat: Tensor,
        info: StepInfo,
        arena: Arena,
        *,
        squares: float | None = None,
        clear: bool = False,
    ) -> Encoded:
        """``squares`` is the sum of them, if it is known and usable."""
        fusion = self._fusion(codec)
        forgotten = self._about_to_forget(piece)
        if fusion is None:
            if squares is None:
                squares = _native.sum_squares(flat)
            self._note_squares(piece, squares)
            self._states.save(piece, info.step)
            payload = self._plain(codec, piece, flat, info, arena)
        else:
            payload = self._fused(codec, fusion, piece, flat, info, arena, squares, clear)
        if clear and not (fusion and fusion.clears):
            flat.zero_()
        self.given_squares += self.squares[piece.name]
        self.forgotten_squares += forgotten
        return Encoded(codec.wire_id, flat.numel(), payload)

    def encode_sum(
        self,
        codec: Codec,
        piece: Piece,
        pushes: Sequence[EncodedBytes],
        weight: float,
        info: StepInfo,
        arena: Arena,
    ) -> Encoded | None:
        """Encode ``weight`` times the sum of ``pushes`` without forming it.

        None, and nothing has changed, if no fused pass can, or if the sum overflows.
        """
        fusion = self._fusion(codec)
        if fusion is None or not fusion.can_sum(push.wire_id for push in pushes):
            return None
        if fusion.sums_in_place:
            change = self._states.begin_in_place(piece, info)
        else:
            change = self._states.begin(piece, info)
        payloads = [push.payload for push in pushes]

        def write(out: memoryview) -> int:
            nbytes = fusion.sum_step(payloads, weight, change, out, numel=piece.numel)
            if nbytes is None:
                raise Overflowed
            return nbytes

        try:
            payload = arena.fill(codec.max_nbytes(piece.numel), write)
        except Overflowed:
            return None
        self._states.finish(piece, change)
        return Encoded(codec.wire_id, piece.numel, payload)

    def _fused(
        self,
        codec: Codec,
        fusion: Fusion,
        piece: Piece,
        flat: Tensor,
        info: StepInfo,
        arena: Arena,
        squares: float | None,
        clear: bool,
    ) -> Payload:
        change = self._states.begin(piece, info)
        if change.after is change.state and squares is None:  # which an overflow would spoil
            squares = _native.sum_squares(flat)
        if squares is not None:
            self._note_squares(piece, squares)

        def write(out: memoryview) -> int:
            nbytes, new_squares = fusion.step(flat, change, out, clear=clear)
            if squares is None:
                self._note_squares(piece, new_squares)
            return finite(nbytes, codec.name)

        payload = arena.fill(codec.max_nbytes(flat.numel()), write)
        self._states.finish(piece, change)
        return payload

    def _plain(
        self, codec: Codec, piece: Piece, flat: Tensor, info: StepInfo, arena: Arena
    ) -> Payload:
        state = self._states.find(piece).settle()
        wanted = self._feedback.before(flat, state, info)
        payload = encode(codec, wanted, arena, seed=self._seed_for(codec, piece, info))
        if not self.forgets:
            sent = self._room_for(wanted.numel())
            codec.decode(payload, sent)
            self._feedback.after(sent, state, sparse=codec.sparse)
        return payload

    def _note_squares(self, piece: Piece, squares: float) -> None:
        self.squares[piece.name] = squares
        if not is_usable(squares):
            raise Overflowed

    def _about_to_forget(self, piece: Piece) -> float:
        """The sum of squares of what the next step forgets of the residual."""
        if self.decay == 1.0:
            return 0.0
        residual = self._states.find(piece).settle()["residual"]
        return (1.0 - self.decay) ** 2 * _native.sum_squares(residual)

    def _room_for(self, numel: int) -> Tensor:
        """Memory for what was sent, used again for every piece."""
        if self._scratch.numel() < numel:
            self._scratch = torch.empty(numel)
        return self._scratch[:numel]

    def _fusion(self, codec: Codec) -> Fusion | None:
        # Most tensors have the same codec, and to look takes longer than to compress a small one.
        newest = self._newest_fusion
        if newest[0] is not codec:
            fusion = find_fusion(codec, self._feedback) if self._fuse else None
            newest = self._newest_fusion = codec, fusion
        return newest[1]

    def _seed_for(self, codec: Codec, piece: Piece, info: StepInfo) -> int:
        """A seed of its own for every tensor, step and, unless the codec shares it, rank."""
        rank = 0 if shares_seed(codec) else self._rank
        text = f"{self._seed}/{rank}/{info.step}/{piece.name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
