"""Whether a worker may join, and if not, why, in a sentence for whoever started it.

A number from a peer must not make this side allocate or compute without bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.errors import RemoteProtocolError
from thinwire.model import Model
from thinwire.recipe import Recipe
from thinwire.server.rules import Rules
from thinwire.wire.body import shortened
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Describe, Described, Join, Reason, Refusal
from thinwire.wire.session import Session, State

MOST_NUMEL = 1 << 36
"""Parameters of a model."""

MOST_SERVERS = 1 << 12
"""Of a run: pieces are placed among all of them."""

MOST_DESCRIBE_NBYTES = 4 << 20
"""Of the first description: 65,536 tensors of 64 bytes. A MiB takes a second to read."""

_MORE_DESCRIBE_NBYTES = 16 << 10
"""Beyond twice the one that is known. So reading another takes hardly longer than reading that."""

_RECIPE_CHARACTERS = 80
"""Of each recipe, from where they differ."""


def check_first_words(session: Session, frame: Frame, known: Frame | None) -> None:
    """Refuse, unread, what is not worth the time, from somebody who has not joined.

    ``known`` is the description of what is trained. Raises RemoteProtocolError.
    """
    if session.state not in (State.NEW, State.DESCRIBED) or frame.epoch != 0:
        return  # the session knows better what is wrong with that
    if frame.kind not in (Describe.kind, Join.kind):
        raise RemoteProtocolError(f"frame of kind {frame.kind} before a Join")
    most = MOST_DESCRIBE_NBYTES
    if known is not None:
        most = min(most, 2 * len(known.body) + _MORE_DESCRIBE_NBYTES)
    if len(frame.body) > most:
        raise RemoteProtocolError(
            f"{len(frame.body)} bytes to describe a model or to join, the limit is {most} here"
        )


def why_not(
    worker: int,
    join: Join,
    description: Describe | None,
    *,
    recipe: Recipe,
    rules: Rules,
    model: Model | None,
    checksums: Sequence[int],
    version: int,
    since: int,
    joined: bool,
) -> Refusal | None:
    """``version`` and ``since``: the newest one here, and the first that can be caught up from.

    ``checksums``: those of the weights of version 0, if others rely on them. ``joined``: there is
    such a worker already.
    """

    def refuse(reason: Reason, text: str) -> Refusal:
        return Refusal(version, reason, shortened(text))

    if join.workers != rules.workers:
        text = f"this server was started for {rules.workers} workers, you say {join.workers}"
        return refuse(Reason.DIGEST, text)
    if worker >= rules.workers:
        text = f"worker {worker}: there are only workers 0 to {rules.workers - 1}"
        return refuse(Reason.UNKNOWN_WORKER, text)
    if joined:
        text = f"worker {worker} has joined already: does another process have the same rank?"
        return refuse(Reason.UNKNOWN_WORKER, text)
    if description is None:
        return refuse(Reason.DIGEST, "say what you train before you join")
    difference = _difference(join, description, recipe=recipe, rules=rules, model=model)
    if difference is not None:
        return refuse(Reason.DIGEST, difference)
    difference = _other_weights(join.checksums, description.tensors, checksums)
    if difference is not None:
        return refuse(Reason.DIGEST, difference)
    if join.version > version:
        text = (
            f"you are at version {join.version}, this server only at {version}: is it another "
            "run's, or did it lose its log?"
        )
        return refuse(Reason.HISTORY, text)
    if join.version < since:
        text = (
            f"you are at version {join.version}, but updates up to {since} are not kept any more: "
            "start from a newer checkpoint"
        )
        return refuse(Reason.HISTORY, text)
    return None


def _difference(
    join: Join, description: Describe, *, recipe: Recipe, rules: Rules, model: Model | None
) -> str | None:
    if description.recipe != repr(recipe):
        return _other_recipe(repr(recipe), description.recipe)
    if model is None:
        absurd = _absurdity(description, rules)
        if absurd is not None:
            return absurd
        model = Model(description, rules.workers)
    difference = model.difference(description)
    if difference is None and join.digest != model.digest:
        return "digests differ: do both sides have the same version of Thinwire?"
    return difference


def _other_recipe(here: str, yours: str) -> str:
    """The place where they differ: whole recipes are too long for a sentence, or a line of log."""
    pairs = enumerate(zip(here, yours, strict=False))
    same = next((i for i, (one, other) in pairs if one != other), min(len(here), len(yours)))
    begin = max(here.rfind("(", 0, same), here.rfind(" ", 0, same)) + 1

    def part(text: str) -> str:
        shown = text[begin : begin + _RECIPE_CHARACTERS]
        return "…" * (begin > 0) + shown + "…" * (begin + len(shown) < len(text))

    return f"the recipe here is {part(here)}, yours is {part(yours)}"


def _other_weights(
    found: Sequence[int], tensors: Sequence[Described], expected: Sequence[int]
) -> str | None:
    """What is wrong with checksums, if they are given and there is something to compare with."""
    if not found:
        return None
    if len(found) != len(tensors):
        return f"checksums of {len(found)} tensors, but you describe {len(tensors)}"
    for tensor, one, other in zip(tensors, found, expected, strict=False):
        if one != other:
            return (
                f"your {tensor.name} is not what this run began with: build the network with the "
                "same seed on all workers, or load the same checkpoint"
            )
    return None


def _absurdity(description: Describe, rules: Rules) -> str | None:
    """Why nobody can train this model here."""
    if description.servers > MOST_SERVERS:
        return f"{description.servers} servers, the limit is {MOST_SERVERS}"
    if _numel(description) > MOST_NUMEL:
        return f"a model of more than {MOST_NUMEL} parameters, which is the limit"
    names = [piece.name for piece in Model(description, rules.workers).pieces]
    if len(set(names)) != len(names):  # what is owed is kept by name
        return f"{len(names)} pieces of tensors with only {len(set(names))} names"
    return None


def _numel(description: Describe) -> int:
    total = 0
    for tensor in description.tensors:
        numel = 1
        for length in tensor.shape:
            numel *= length
        total += numel
    return total
