"""Writing so that it stays written. Knows files and folders, not what is in them.

Errors of the system come out as LogError: a sentence that names the file and says what to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from thinwire.errors import LogError

Buffer: TypeAlias = bytes | bytearray | memoryview

TEMPORARY = ".tmp"
"""The suffix of files that are not finished: whoever finds one may delete it."""

_MOST_BUFFERS = 1024  # IOV_MAX of Linux: more buffers in one call are refused
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def explained(path: Path, doing: str) -> Generator[None, None, None]:
    """Turn what the system refuses into a sentence about ``path``."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        advice = "make room on its disk" if error.errno in _FULL else "look after its disk"
        raise LogError(
            f"log: {path} could not be {doing}: {why}; {advice}, then restart"
        ) from error


def write_at(fd: int, parts: Sequence[Buffer], offset: int) -> int:
    """Write all of ``parts`` from ``offset`` on, in as few calls as possible; the end's offset."""
    for start in range(0, len(parts), _MOST_BUFFERS):
        left = parts[start : start + _MOST_BUFFERS]
        while left:
            written = os.pwritev(fd, left, offset)
            offset += written
            left = _after(left, written)
    return offset


def _after(parts: Sequence[Buffer], nbytes: int) -> Sequence[Buffer]:
    """What is left of ``parts`` after their first ``nbytes``; a disk may take less than all."""
    for i, part in enumerate(parts):
        if nbytes < len(part):
            return [memoryview(part)[nbytes:], *parts[i + 1 :]]
        nbytes -= len(part)
    return []


def write_whole(path: Path, frames: Iterable[Sequence[Buffer]]) -> int:
    """Make ``path`` hold these bytes, or leave it as it was: no crash shows anything between.

    Returns its nbytes. It is on the disk, name and all, when this returns.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with explained(path, "written"):
            nbytes = _write_new(temporary, frames)
            temporary.rename(path)
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return nbytes


def _write_new(path: Path, frames: Iterable[Sequence[Buffer]]) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        end = 0
        for parts in frames:
            end = write_at(fd, parts, end)
        os.fsync(fd)
    finally:
        os.close(fd)
    return end


def cut_file(path: Path, nbytes: int) -> None:
    """Leave ``nbytes`` of a file, and make sure that these are on the disk."""
    with explained(path, "cut"):
        fd = os.open(path, os.O_WRONLY)
        try:
            os.ftruncate(fd, nbytes)
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make new, renamed and deleted names in ``folder`` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_folder(folder: Path) -> int:
    """Make ``folder`` this process's own until the file descriptor is closed, or the process ends.

    The file stays: deleting it would let two processes lock two files of the same name.
    """
    path = folder / "lock"
    with explained(path, "opened"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(fd, path)
    except LogError:
        os.close(fd)
        raise
    return fd


def _lock(fd: int, path: Path) -> None:
    with explained(path, "locked"):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            raise LogError(
                f"log: {path.parent} is in use by another server (process {owner or 'unknown'}): "
                "stop that one, or give this one a folder of its own"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
