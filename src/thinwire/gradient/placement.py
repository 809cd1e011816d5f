"""Who serves which piece: balanced by size, and the same wherever it is computed."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from thinwire.gradient.pieces import Piece
from thinwire.settings import check_whole


def place(pieces: Sequence[Piece], *, owners: int) -> tuple[int, ...]:
    """The owner of each piece.

    The largest piece goes to the owner with the least so far, and so on; the lower number wins
    among equals. No owner has more than the mean and one piece.
    """
    check_whole(owners, least=1, owner="place", field="owners")
    heap = [(0, owner) for owner in range(owners)]
    placed = [0] * len(pieces)
    by_size = sorted(range(len(pieces)), key=lambda i: (-pieces[i].numel, i))
    for i in by_size:
        load, placed[i] = heapq.heappop(heap)
        heapq.heappush(heap, (load + pieces[i].numel, placed[i]))
    return tuple(placed)
