"""Whether a worker may join, and if not, why, in a sentence for whoever started it."""

from __future__ import annotations

from thinwire.model import Model
from thinwire.recipe import Recipe
from thinwire.server.rules import Rules
from thinwire.wire.body import shortened
from thinwire.wire.messages import Describe, Join, Reason, Refusal

MOST_NUMEL = 1 << 36
"""Parameters of a model. A number from a peer must not make this side allocate without bound."""


def why_not(
    worker: int,
    join: Join,
    description: Describe | None,
    *,
    recipe: Recipe,
    rules: Rules,
    model: Model | None,
    version: int,
    since: int,
    joined: bool,
) -> Refusal | None:
    """``version`` and ``since``: the newest one here, and the first that can be caught up from.

    ``joined``: there is such a worker already.
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
        return f"the recipe here is {recipe!r}, yours is {description.recipe}"
    if _numel(description) > MOST_NUMEL:
        return f"a model of {_numel(description)} parameters, the limit is {MOST_NUMEL}"
    model = model or Model(description, rules.workers)
    difference = model.difference(description)
    if difference is None and join.digest != model.digest:
        return "digests differ: do both sides have the same version of Thinwire?"
    return difference


def _numel(description: Describe) -> int:
    total = 0
    for tensor in description.tensors:
        numel = 1
        for length in tensor.shape:
            numel *= length
        total += numel
    return total
