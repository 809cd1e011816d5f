"""``LogSettings``: fsync and retention of a log. Pure: the log deletes what is ``removable``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thinwire.checks import check_choice, check_whole


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``fsync``: "step" makes every commit wait for the disk, so that it survives a power cut;
    with "off" it survives a crash of the process, but not of the machine.

    ``segment_nbytes``: a segment of this size is followed by a new one. ``keep_steps``,
    ``keep_nbytes``: updates of so many versions, or so many bytes of log, are kept for workers that
    come back; what exceeds either of them is deleted. None, None keeps all, so that the weights of
    any step can be computed. What a restart needs is always kept.
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
    """The oldest of ``segments``, as far as neither a restart nor the settings want them.

    ``needed`` is the first record that a restart may read, ``version`` the newest, ``nbytes`` those
    of all segments.
    """
    old_ones = []
    for segment in segments:
        old = settings.keep_steps is not None and segment.version <= version - settings.keep_steps
        much = settings.keep_nbytes is not None and nbytes > settings.keep_nbytes
        if segment.next_record > needed or not (old or much):
            break
        old_ones.append(segment)
        nbytes -= segment.nbytes
    return old_ones
