"""``SignRuns``: the momentum of Adam as bits, for as long as they are true.

An answer in one bit for each element has one magnitude in each run of 64, and so has the momentum
that Adam's step makes of it. The step writes signs and magnitudes down while it has them in
registers, and the next push reads those, 12 bytes for each run instead of 256, to the same result.
"""

from __future__ import annotations

import weakref

from torch import Tensor

from thinwire import _native
from thinwire.codec.sign import RUN
from thinwire.gradient.pieces import Piece


class SignRuns:
    """The sign runs of one parameter's momentum.

    Anything may change the momentum in between: a checkpoint, a full step, the user. So they are
    true only of the very tensor they were made of, at the same place and version. Torch counts
    versions with every operation in place, and our kernels of Adam do. Collectives and numpy do
    not; what those overwrite differs in a sample.
    """

    def __init__(self) -> None:
        self._bits: bytearray | None = None
        self._true_of: weakref.ref[Tensor] | None = None
        self._place_and_version = 0, 0

    def room(self, numel: int) -> bytearray:
        """Where a step writes them; until ``hold`` they are true of nothing."""
        self._true_of = None
        if self._bits is None:
            self._bits = _native.empty_bytearray(_native.sign_runs_nbytes(numel))
        return self._bits

    def hold(self, momentum: Tensor) -> None:
        """They are true of this tensor as it is now."""
        if not momentum.is_inference():  # those have no versions
            self._true_of = weakref.ref(momentum)
            self._place_and_version = momentum.data_ptr(), momentum._version

    def drop(self) -> None:
        """The momentum did not come in one bit for each element, and may never do."""
        self._true_of = self._bits = None

    def of_piece(self, piece: Piece, momentum: Tensor) -> memoryview | None:
        """Those of a piece of ``momentum``; None if the floats must be read."""
        if self._bits is None or not self._are_true_of(momentum):
            return None
        if piece.start % RUN or (piece.stop % RUN and piece.stop != piece.key.numel):
            return None
        begin, end = map(_native.sign_runs_nbytes, (piece.start, piece.stop))
        bits = memoryview(self._bits)[begin:end]
        floats = momentum.view(-1)[piece.start : piece.stop]
        return bits if _native.sign_runs_agree(bits, floats) else None

    def _are_true_of(self, momentum: Tensor) -> bool:
        if self._true_of is None or self._true_of() is not momentum:
            return False
        return self._place_and_version == (momentum.data_ptr(), momentum._version)
