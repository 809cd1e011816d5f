"""``refusal_for``: whether a worker may join, and if not, the reason in one sentence for its user.

What a peer claims is bounded before it is believed: no number of its may make this side allocate or
compute without limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.errors import RemoteProtocolError
from thinwire.model import Model, digest_of
from thinwire.recipe import Recipe
from thinwire.recipe_names import typed_recipe, typed_stored_recipe
from thinwire.recipe_text import same_recipe
from thinwire.server.settings import Rules
from thinwire.wire.body import shortened
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Describe, Described, Join, Reason, Refusal
from thinwire.wire.session import Session, State

MOST_NUMEL = 1 << 36
"""Parameters of a model."""

MOST_SERVERS = 1 << 12
"""Servers of a run: pieces are placed among all of them."""

MOST_DESCRIBE_NBYTES = 4 << 20
"""Bytes of the first Describe: 65,536 tensors of 64 bytes. A MiB takes a second to read."""

_MORE_DESCRIBE_NBYTES = 16 << 10
"""Allowed beyond twice the known Describe, so that reading another one takes hardly longer."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What a Join is compared with.

    ``checksums`` are those of the weights of version 0, if the training relies on them already.
    ``version`` is the newest one here, ``since`` the first that a worker can catch up from.
    ``joined`` are the workers that are connected. ``has_its_key``: the one that joins has a key
    that it may use, or needs none.
    """

    recipe: Recipe
    rules: Rules
    model: Model | None = None
    checksums: Sequence[int] = ()
    version: int = 0
    since: int = 0
    joined: frozenset[int] = frozenset()
    has_its_key: bool = True


def check_handshake(session: Session, frame: Frame, known: Frame | None) -> None:
    """Refuse, undecoded, a frame of a peer that has not joined unless it is a small enough
    Describe or Join.

    ``known`` is the Describe of this run. Raises RemoteProtocolError.
    """
    if session.state not in (State.NEW, State.DESCRIBED) or frame.epoch != 0:
        return  # the session has the better error for that
    if frame.kind not in (Describe.kind, Join.kind):
        raise RemoteProtocolError(f"frame of kind {frame.kind} before a Join")
    most = MOST_DESCRIBE_NBYTES
    if known is not None:
        most = min(most, 2 * len(known.body) + _MORE_DESCRIBE_NBYTES)
    if len(frame.body) > most:
        raise RemoteProtocolError(
            f"{len(frame.body)} bytes to describe a model or to join, the limit is {most} here"
        )


def refusal_for(
    worker: int, join: Join, description: Describe | None, run: RunState
) -> Refusal | None:
    """The answer to a worker that may not join; None if it may."""
    wrong = (
        _wrong_worker(worker, join, run)
        or _wrong_model(join, description, run)
        or _wrong_version(join, run)
    )
    return None if wrong is None else Refusal(run.version, wrong[0], shortened(wrong[1]))


def _wrong_worker(worker: int, join: Join, run: RunState) -> tuple[Reason, str] | None:
    workers = run.rules.workers
    if join.workers != workers:
        text = f"this server was started for {workers} workers, you say {join.workers}"
        return Reason.DIGEST, text
    if worker >= workers:
        return Reason.UNKNOWN_WORKER, f"worker {worker}: there are only workers 0 to {workers - 1}"
    if not run.has_its_key:
        return Reason.UNKNOWN_WORKER, f"your key may not be used by worker {worker}"
    if worker in run.joined:
        text = f"worker {worker} has joined already: does another process have the same rank?"
        return Reason.UNKNOWN_WORKER, text
    return None


def _wrong_model(
    join: Join, description: Describe | None, run: RunState
) -> tuple[Reason, str] | None:
    if description is None:
        return Reason.DIGEST, "a Join without a Describe: say what you train before you join"
    difference = _difference(join, description, run)
    if difference is None:
        difference = _other_weights(join.checksums, description.tensors, run.checksums)
    return None if difference is None else (Reason.DIGEST, difference)


def _wrong_version(join: Join, run: RunState) -> tuple[Reason, str] | None:
    if join.version > run.version:
        text = (
            f"you are at version {join.version}, this server only at {run.version}: is it another "
            "run's, or did it lose its log?"
        )
        return Reason.HISTORY, text
    if join.version < run.since:
        text = (
            f"you are at version {join.version}, but updates up to {run.since} are not kept any "
            "more: start from a newer checkpoint"
        )
        return Reason.HISTORY, text
    return None


def _difference(join: Join, description: Describe, run: RunState) -> str | None:
    """In which way the worker does not train what this run trains."""
    if not same_recipe(run.recipe, description.recipe):
        yours = typed_stored_recipe(description.recipe)
        return f"the recipe here is {typed_recipe(run.recipe)}, yours is {yours}"
    workers, model = run.rules.workers, run.model
    if model is None:
        impossible = _impossible(description, workers)
        if impossible is not None:
            return impossible
        model = Model(description, workers)
    difference = model.difference(description)
    if difference is None and join.digest != digest_of(description, workers):
        return "digests differ: do both sides have the same version of Thinwire?"
    return difference


def _other_weights(
    checksums: Sequence[int], tensors: Sequence[Described], expected: Sequence[int]
) -> str | None:
    """What is wrong with checksums, if they are given and there is something to compare with."""
    if not checksums:
        return None
    if len(checksums) != len(tensors):
        return f"checksums of {len(checksums)} tensors, but you describe {len(tensors)}"
    for tensor, yours, ours in zip(tensors, checksums, expected, strict=False):
        if yours != ours:
            return (
                f"your {tensor.name} is not what this run began with: build the network with the "
                "same seed on all workers, or load the same checkpoint"
            )
    return None


def _impossible(description: Describe, workers: int) -> str | None:
    """Why no server can train this model."""
    if description.servers > MOST_SERVERS:
        return f"{description.servers} servers, the limit is {MOST_SERVERS}"
    if _numel(description) > MOST_NUMEL:
        return f"a model of more than {MOST_NUMEL} parameters, which is the limit"
    names = [piece.name for piece in Model(description, workers).pieces]
    if len(set(names)) != len(names):  # residuals are kept by name
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
