"""Which segments may go. Pure: deleting them is up to the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thinwire.settings import check_choice, check_whole


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``fsync``: "step" makes every commit wait for the disk, so that it survives a power cut;
    with "off" it survives the end of the process, however sudden, but not that of the machine.

    ``segment_nbytes``: a segment that has reached it is followed by a new one. ``keep_steps``,
    ``keep_nbytes``: updates of so many versions, or so many bytes of log, are kept for workers that
    come back; what exceeds either of them goes. None, None keeps all, so that the weights of any
    step can be computed. What a restart needs is always kept.
    """

    fsync: str = "step"
    segment_nbytes: int = 64 << 20
    keep_steps: int | None = None
    keep_nbytes: int | None = None

    def __post_init__(self) -> None:
        check_choice(self.fsync, ("step", "off"), owner="LogSettings", field="fsync")
        for field, least in (("segment_nbytes", 1), ("keep_steps", 0), ("keep_nbytes", 0)):
            value = getattr(self, field)
            if value is not None:
                check_whole(value, least=least, owner="LogSettings", field=field)


DEFAULT_SETTINGS = LogSettings()


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished segment: the record after its last, and the highest version up to its end."""

    number: int
    path: Path
    nbytes: int
    next_record: int
    version: int


def removable(
    segments: Sequence[Kept], settings: LogSettings, *, needed: int, version: int, nbytes: int
) -> list[Kept]:
    """Those of ``segments``, oldest first, that neither restart nor the settings want.

    ``needed`` is the first record that a restart may ask for, ``version`` the newest, ``nbytes``
    that of all segments.
    """
    found = []
    for segment in segments:
        old = settings.keep_steps is not None and segment.version <= version - settings.keep_steps
        much = settings.keep_nbytes is not None and nbytes > settings.keep_nbytes
        if segment.next_record > needed or not (old or much):
            break
        found.append(segment)
        nbytes -= segment.nbytes
    return found
