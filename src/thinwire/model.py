"""What is trained: names, shapes and recipe, and which server owns which pieces."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import Piece, cut, piece_numel_for
from thinwire.gradient.placement import place
from thinwire.wire.messages import Describe, Described


@dataclass(frozen=True, slots=True)
class Model:
    """``description`` is what a worker said; everything else follows from it."""

    description: Describe
    workers: int

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All pieces of the model, cut as every worker cuts them."""
        keys = [Key(tensor.name, tensor.shape) for tensor in self.description.tensors]
        return cut(keys, most_numel=piece_numel_for(keys, owners=self.workers))

    @property
    def digest(self) -> bytes:
        return digest_of(self.description, self.workers)

    def own(self) -> dict[int, Piece]:
        """The pieces of this server, by number."""
        owners = place(self.pieces, owners=self.description.servers)
        mine = self.description.server
        return {
            number: piece
            for number, (piece, owner) in enumerate(zip(self.pieces, owners, strict=True))
            if owner == mine
        }

    def difference(self, other: Describe) -> str | None:
        """In which way ``other`` is not this model, in one sentence; None if it is.

        Recipes are not compared: a server has one before it has a model.
        """
        own = self.description
        if (other.server, other.servers) != (own.server, own.servers):
            return (
                f"this is server {own.server} of {own.servers}, you ask for {other.server} of "
                f"{other.servers}: give all workers the same addresses in the same order"
            )
        if other.lead != own.lead:
            return (
                f"server 0 here is of run {own.lead}, yours of run {other.lead}: give all workers "
                "the same addresses, and all servers the logs of the same run"
            )
        for mine, theirs in zip(own.tensors, other.tensors, strict=False):
            if mine != theirs:
                return f"here is {_spelled(mine)} where you have {_spelled(theirs)}"
        if len(own.tensors) != len(other.tensors):
            return f"the model here has {len(own.tensors)} tensors, yours {len(other.tensors)}"
        return None


def describe(
    keys: list[Key], recipe: object, *, server: int, servers: int, lead: int = 0
) -> Describe:
    """What a worker says of the model it trains. ``lead`` is the run of server 0."""
    tensors = tuple(Described(key.name, key.shape) for key in keys)
    return Describe(server, servers, repr(recipe), tensors, lead)


def digest_of(description: Describe, workers: int) -> bytes:
    return hashlib.sha256(repr((description, workers)).encode()).digest()


def _spelled(tensor: Described) -> str:
    return f"{tensor.name} {list(tensor.shape)}"
