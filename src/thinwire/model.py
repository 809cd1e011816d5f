"""``Model``: names and shapes of what is trained, and which server owns which pieces."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from thinwire.gradient.pieces import Key, Piece, cut, piece_numel_for, place
from thinwire.recipe import Recipe
from thinwire.recipe_text import stored_recipe
from thinwire.wire.messages import Describe, Described, encode


@dataclass(frozen=True, slots=True)
class Model:
    """``description`` comes from a worker; all else follows from it."""

    description: Describe
    workers: int

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All pieces of the model, cut as on every worker."""
        keys = [Key(tensor.name, tensor.shape) for tensor in self.description.tensors]
        return cut(keys, most_numel=piece_numel_for(keys, owners=self.workers))

    def owned_pieces(self) -> dict[int, Piece]:
        """The pieces of this server, by number."""
        owners = place(self.pieces, owners=self.description.servers)
        this = self.description.server
        return {
            number: piece
            for number, (piece, owner) in enumerate(zip(self.pieces, owners, strict=True))
            if owner == this
        }

    def difference(self, other: Describe) -> str | None:
        """How ``other`` differs from this model, in one sentence; None if it does not.

        Recipes are not compared: a server has one before it has a model.
        """
        ours = self.description
        if (other.server, other.servers) != (ours.server, ours.servers):
            return (
                f"this is server {ours.server} of {ours.servers}, you ask for {other.server} of "
                f"{other.servers}: give all workers the same addresses in the same order"
            )
        if other.lead != ours.lead:
            return (
                f"server 0 here is of run {ours.lead}, yours of run {other.lead}: give all workers "
                "the same addresses, and all servers the logs of the same run"
            )
        for mine, theirs in zip(ours.tensors, other.tensors, strict=False):
            if mine != theirs:
                return f"here is {_text(mine)} where you have {_text(theirs)}"
        if len(ours.tensors) != len(other.tensors):
            return f"the model here has {len(ours.tensors)} tensors, yours {len(other.tensors)}"
        return None


def describe(
    keys: list[Key], recipe: Recipe, *, server: int, servers: int, lead: int = 0
) -> Describe:
    """The Describe of a worker that trains ``keys``. ``lead`` is the run of server 0."""
    tensors = tuple(Described(key.name, key.shape) for key in keys)
    return Describe(server, servers, stored_recipe(recipe), tensors, lead)


def digest_of(description: Describe, workers: int) -> bytes:
    """SHA-256 of a Describe's bytes, which mean the same to every version of Thinwire."""
    body = encode(description, run=0, epoch=0, worker=0, step=0).body
    return hashlib.sha256(bytes(body) + workers.to_bytes(4, "little")).digest()


def _text(tensor: Described) -> str:
    return f"{tensor.name} {list(tensor.shape)}"
