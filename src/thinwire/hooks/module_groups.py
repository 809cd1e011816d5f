"""``Group``: gradients of a plain module that travel together. ``neighbours`` chooses them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from torch import Tensor

from thinwire.exchange.base import Unit
from thinwire.gradient.pieces import Piece
from thinwire.gradient.steps import StepInfo

FIRST_NBYTES = 1 << 16
"""Of payloads: the first group is sent when it has so many, so that the link is soon in use."""

GROUP_NBYTES = 1 << 20
"""Each group waits for twice as many bytes as the one before, because the link is in use meanwhile
and a message takes as long as many bytes, but for no more than these."""


def neighbours(nbytes: Mapping[str, int], small: Container[str] = ()) -> list[list[str]]:
    """Parameters that travel together, in this order. ``nbytes`` are of their payloads, about.

    Those that are ``small`` come last, when backward has ended: to wait for them costs nothing.
    """
    groups: list[list[str]] = []
    enough, total = 0, 0
    for name in nbytes:
        if total >= (GROUP_NBYTES if groups and name in small else enough):
            groups.append([])
            enough, total = min(max(2 * total, FIRST_NBYTES), GROUP_NBYTES), 0
        groups[-1].append(name)
        total += nbytes[name]
    return groups


class Group:
    """A GradientBuffer of gradients that travel together in one step. They come one by one."""

    def __init__(self, pieces: Mapping[str, Sequence[Piece]]) -> None:
        """``pieces`` are those of all its gradients, by name."""
        self.names = tuple(pieces)
        self.pieces = [piece for cut in pieces.values() for piece in cut]
        self.flat: dict[str, Tensor] = {}

    @property
    def is_full(self) -> bool:
        return len(self.flat) == len(self.names)

    def unit(self, pieces: Sequence[Piece], info: StepInfo) -> Unit:
        return Unit(pieces, self.flat, info)

    def store(self) -> bool:
        """The mean is where the gradients were."""
        return True

    def complete(self) -> None:
        """Backward waits for the whole step."""
