"""``Limits``: the largest frame, and what else bounds a message."""

from __future__ import annotations

from dataclasses import dataclass, fields

from thinwire import errors

MAX_BODY_NBYTES = (64 + 1) << 20
"""The largest body of a frame: 64 MiB of payloads, 1 MiB for the table of entries and fixed fields.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What this side reads and writes at most, checked before anything is allocated.

    ``max_body_nbytes``: a model of any size fits, cut into several frames, and a server never holds
    more than this of a worker's unfinished frame. ``max_entries``: pieces in one message; 65536
    rows of 14 bytes are 896 KiB. ``max_numel``: elements of one piece, because a sparse payload of
    a few bytes may claim any number and its reader allocates for it; 2**26 are 256 MiB of float32.
    ``max_text_nbytes``: a sentence or two for the user.
    """

    max_body_nbytes: int = MAX_BODY_NBYTES
    max_entries: int = 1 << 16
    max_numel: int = 1 << 26
    max_text_nbytes: int = 1 << 10

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 0xFFFF_FFFF:
                raise errors.ConfigError(
                    f"limits: {field.name} {value}, expected 0..4294967295, its field has 32 bits"
                )


DEFAULT_LIMITS = Limits()
