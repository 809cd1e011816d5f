"""Why a message is refused or a session ends."""

from __future__ import annotations

import enum

from thinwire import errors
from thinwire.wire.body import Reader


class Reason(enum.IntEnum):
    """Why a message is refused or a session ends."""

    STALE = 1  # a push computed on too old a version: the pieces go back to the worker's residual
    LIMIT = 2  # a push beyond what the server will hold for this worker: they go back as well
    HISTORY = 3  # the versions wanted are not in the log: start from a checkpoint
    DIGEST = 4  # they disagree on names, shapes, recipe, number of workers or the first weights
    UNKNOWN_WORKER = 5  # no such worker, or it has joined already
    EPOCH = 6  # sent to another run, or to the server before its restart: join again
    PROTOCOL = 7  # the peer broke the protocol
    LOST = 8  # a worker is gone for good: everyone stops; the text names it
    STOPPING = 9  # this side shuts down before the training is done
    DONE = 10  # the training is done


def read_reason(where: str, body: Reader) -> Reason:
    code = body.uint(2)
    try:
        return Reason(code)
    except ValueError:
        raise errors.LocalProtocolError(
            f"{where}: reason {code}, expected {min(Reason)}..{max(Reason)}"
        ) from None
